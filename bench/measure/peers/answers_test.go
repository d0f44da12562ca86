package peers

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/bench/internal/benchtest"
	"weir/bench/internal/testbed"
)

// Their main of July 5, 2026.
const ratelimitModule = "github.com/envoyproxy/ratelimit@f2fb15770f7f"

var (
	ratelimit = flag.String("ratelimit", "", "the `program` of envoyproxy/ratelimit (default: one that is built from "+ratelimitModule+", if Go can fetch that)")
	source    = flag.String("files", "", "the `folder` of its source")
	rounds    = flag.Int("rounds", 10, "of random requests, one by each of 600 files")
)

// A jury has the products answer.
type jury struct {
	*testing.T
	ratelimit string // the other; "" if it isn't there
	build     *testbed.Build
	memcached string
}

// newJury builds weir, and starts a Memcached for it.
func newJury(t *testing.T) *jury {
	return &jury{T: t, build: benchtest.Build(t, ""), memcached: benchtest.Memcached(t).Addr}
}

// Weir, as it is by default and by the variables of the other, answers as the cases say. Where
// envoyproxy/ratelimit can be built, it does so too, and both answer alike to random requests, and
// to those by the examples and tests in its source.
func TestAnswersAreThoseOfRatelimit(t *testing.T) {
	t.Parallel()
	j := newJury(t)
	folder := *source
	if j.ratelimit = *ratelimit; j.ratelimit == "" {
		j.ratelimit, folder = installRatelimit(t)
	}
	if left := time.Hour - time.Since(time.Now().Truncate(time.Hour)); left < time.Minute { // all counts in one hour
		time.Sleep(left)
	}
	cases, err := readCases(casesText)
	require.NoError(t, err)
	domains, files := randomDomains(600)
	for i, c := range cases {
		files[domainOf(i)+".yaml"] = fmt.Sprintf("domain: %s\ndescriptors:\n%s", domainOf(i), c.limits)
	}
	p := j.startPanel("answers", files)
	require.NoError(t, p.play(t.Context(), cases))
	if j.ratelimit == "" {
		return
	}
	require.NoError(t, p.askRandomly(t.Context(), domains, *rounds))
	j.compareFiles(folder)
}

// installRatelimit returns the program and its source, or nothing where it can't be built.
func installRatelimit(t *testing.T) (program, source string) {
	run := func(args ...string) ([]byte, error) {
		c := exec.CommandContext(t.Context(), "go", args...)
		c.Dir = t.TempDir()
		c.Env = append(os.Environ(), "GOBIN="+c.Dir, "GOFLAGS=")
		program = filepath.Join(c.Dir, "service_cmd")
		return c.Output()
	}
	out, err := run("mod", "download", "-json", ratelimitModule)
	if err == nil {
		_, err = run("install", strings.Replace(ratelimitModule, "@", "/src/service_cmd@", 1))
	}
	if err != nil {
		t.Logf("the other can't be built here: %v: %s", err, out)
		return "", ""
	}
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &module))
	return program, module.Dir
}

// randomDomains returns random limits, and the files that they are in.
func randomDomains(n int) (domains []*node, files map[string]string) {
	random := rand.New(rand.NewPCG(1, 2))
	files = make(map[string]string)
	for i := range n {
		domains = append(domains, randomNode(random, 0))
		files[fmt.Sprintf("d%d.yaml", i)] = fmt.Sprintf("domain: d%d\ndescriptors:\n%s", i, domains[i].yaml("  "))
	}
	return domains, files
}

// Another weir stands in for the other: the same limits and requests give the same answers.
func TestRandomRequests(t *testing.T) {
	t.Parallel()
	j := newJury(t)
	domains, files := randomDomains(50)
	p, other := j.startPanel("one", files), j.startPanel("two", files)
	p.products = append(p.products, asked{name: ratelimitName, other: true, as: true, client: other.products[1].client})
	require.NoError(t, p.askRandomly(t.Context(), domains, 5))
}

// askRandomly asks all products as many random requests by each of the domains, which have
// their numbers.
func (p *panel) askRandomly(ctx context.Context, domains []*node, rounds int) error {
	randoms := make([]*rand.Rand, len(domains))
	for i := range randoms {
		randoms[i] = rand.New(rand.NewPCG(3, uint64(i)))
	}
	for range rounds {
		err := eachOf(len(domains), func(i int) error {
			request := domains[i].request(randoms[i], fmt.Sprintf("d%d", i))
			p.compareAll(request, p.ask(ctx, request))
			return ctx.Err()
		})
		if err := errors.Join(err, p.awaitCounts(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// eachOf calls f with each number below n, some at once.
func eachOf(n int, f func(int) error) error {
	errs := make([]error, askingAtOnce)
	var asking sync.WaitGroup
	for first := range askingAtOnce {
		asking.Go(func() {
			for i := first; i < n && errs[first] == nil; i += askingAtOnce {
				errs[first] = f(i)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}
