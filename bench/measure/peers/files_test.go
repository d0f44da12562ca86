package peers

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"weir/bench/internal/testbed"
)

// requestsOfFile are asked by each file of the other's source.
const requestsOfFile = 200

// shortUnits are those that may end while a file is asked about.
var shortUnits = regexp.MustCompile(`(?i)\bunit: *"?(second|minute|hour|month|year)"?`)

// compareFiles has both products read each file in a folder called config below that one, alone.
// Where both take it they are asked random requests by it; its units are days then, as others
// end meanwhile.
func (j *jury) compareFiles(folder string) {
	compared := 0
	require.NoError(j, filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".yaml" && filepath.Base(filepath.Dir(path)) == "config" {
			j.compareFile(path, fmt.Sprint("file", compared))
			compared++
		}
		return err
	}))
	assert.Positive(j, compared)
}

// validate returns what weir says is wrong with a file that has that text.
func (j *jury) validate(text string) error {
	path := filepath.Join(j.TempDir(), "limits.yaml")
	require.NoError(j, os.WriteFile(path, []byte(text), 0o600))
	out, err := exec.CommandContext(j.Context(), j.build.Binary, "-validate", "-envoy-config", path).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

func (j *jury) compareFile(path, prefix string) {
	data, err := os.ReadFile(path)
	require.NoError(j, err)
	text := shortUnits.ReplaceAllString(string(data), "unit: day")
	refused, taken := j.validate(text), j.otherTakes(text)
	if !assert.Equal(j, taken, refused == nil, "%s: weir says %v", path, refused) || !taken {
		return
	}
	var file struct {
		Domain      string
		Descriptors []described
	}
	if err := yaml.Unmarshal([]byte(text), &file); !assert.NoError(j, err, path) || len(file.Descriptors) == 0 {
		return
	}
	p := j.startPanel(prefix, map[string]string{filepath.Base(path): text})
	random := rand.New(rand.NewPCG(5, 6))
	for range requestsOfFile {
		request := requestBy(random, file.Domain, file.Descriptors)
		p.compareAll(request, p.ask(j.Context(), request))
		require.NoError(j, p.awaitCounts(j.Context()))
	}
}

// otherTakes reports whether the other product loads a file with that text.
func (j *jury) otherTakes(text string) bool {
	peer, err := testbed.StartRatelimit(j.Context(), j.ratelimit, j.memcached, limitsIn(j.T, map[string]string{"file.yaml": text}), 1)
	if err != nil {
		return false
	}
	defer peer.Stop()
	// It goes on without limits.
	return !strings.Contains(peer.Log.String(), "rror loading")
}

// A described descriptor is what requests need to know of it.
type described struct {
	Key, Value  string
	Descriptors []described
}

// requestBy returns a random request by descriptors, whose own are of different first ones.
func requestBy(r *rand.Rand, domain string, descriptors []described) *rls.RateLimitRequest {
	request := &rls.RateLimitRequest{Domain: domain, HitsAddend: uint32(r.IntN(4))}
	for i, first := range r.Perm(len(descriptors))[:1+r.IntN(min(3, len(descriptors)))] {
		d := new(common.RateLimitDescriptor)
		own := fmt.Sprint(r.IntN(2), "-", i) // no value that two descriptors have
		for at := descriptors[first]; ; at = at.Descriptors[r.IntN(len(at.Descriptors))] {
			value := strings.ReplaceAll(at.Value, "*", own)
			if value == "" || r.IntN(5) == 0 {
				value = own
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: at.Key, Value: value})
			if len(at.Descriptors) == 0 || r.IntN(4) == 0 {
				break
			}
		}
		request.Descriptors = append(request.Descriptors, d)
	}
	return request
}
