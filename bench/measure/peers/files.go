package peers

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v3"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// requestsOfFile are asked by each file that the user brings.
const requestsOfFile = 200

// shortUnits are those that may end while a file is asked about.
var shortUnits = regexp.MustCompile(`(?i)\bunit: *"?(second|minute|hour|month|year)"?`)

// compareFiles has both products read each file in a folder called config below that one, alone.
// Where both take it they are asked random requests by it; its units are days then, as others
// end meanwhile.
func (j *jury) compareFiles(ctx context.Context, folder string, a *Answers) error {
	var paths []string
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".yaml" && filepath.Base(filepath.Dir(path)) == "config" {
			paths = append(paths, path)
		}
		return err
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("there is no file *.yaml in a folder called config below %s", folder)
	}
	for i, path := range paths {
		if err == nil {
			report.Progress("comparing answers by %s", path)
			err = j.compareFile(ctx, path, fmt.Sprintf("file%d", i), a)
		}
	}
	return err
}

func (j *jury) compareFile(ctx context.Context, path, prefix string, a *Answers) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := shortUnits.ReplaceAllString(string(data), "unit: day")
	a.Files++
	refused := j.build.Validate(ctx, text)
	taken, err := j.otherTakes(ctx, text)
	switch {
	case err != nil:
		return err
	case refused == nil != taken:
		a.note("%s: weir says %v; the other takes it: %t", path, refused, taken)
		return nil
	case !taken:
		return nil
	}
	var file struct {
		Domain      string
		Descriptors []described
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil || len(file.Descriptors) == 0 {
		return err
	}
	p, err := j.startPanel(ctx, prefix, map[string]string{filepath.Base(path): text})
	if err != nil {
		return err
	}
	defer p.stop()
	random := rand.New(rand.NewPCG(5, 6))
	for range requestsOfFile {
		request := requestBy(random, file.Domain, file.Descriptors)
		a.compareAll(request, p.ask(ctx, request), p, false)
		if err := p.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// otherTakes reports whether the other product loads a file with that text.
func (j *jury) otherTakes(ctx context.Context, text string) (bool, error) {
	root, err := os.MkdirTemp("", "weir-answers")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(root)
	folder := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(folder, "file.yaml"), []byte(text), 0o644); err != nil {
		return false, err
	}
	peer, err := testbed.StartRatelimit(ctx, j.ratelimit, j.memcached, root, 1)
	if err != nil {
		return false, ctx.Err()
	}
	defer peer.Stop()
	// It goes on without limits.
	return !strings.Contains(peer.Log.String(), "rror loading"), nil
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
