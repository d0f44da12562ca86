package peers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/bench/internal/benchtest"
	"weir/bench/internal/testbed"
)

const (
	// askingAtOnce is how many domains are asked about at once.
	askingAtOnce = 4
	// settling is how long the other product may take to count what it has answered.
	settling = 10 * time.Second
)

// A panel is weir in both ways, and the other product if there is one, with the same files.
type panel struct {
	*testing.T
	products []asked

	// The other has a Memcached of its own, which is asked what it has counted.
	mu    sync.Mutex
	store *testbed.MemcachedConn
	due   atomic.Int64 // counts in all
}

// An asked product is one of a panel.
type asked struct {
	name   string
	other  bool
	as     bool // it has the variables of the other, and answers with the same headers and metadata
	client rls.RateLimitServiceClient
}

// An answer is what a product answers.
type answer struct {
	response *rls.RateLimitResponse
	err      error
}

// startPanel starts the products with files, by their names. They count by the prefix, so that
// no other panel has the same counters in the store.
func (j *jury) startPanel(prefix string, files map[string]string) *panel {
	ctx, p := j.Context(), &panel{T: j.T}
	root := limitsIn(j.T, files)
	add := func(a asked, process *testbed.Process, err error) {
		require.NoError(j, err, a.name)
		j.Cleanup(process.Stop)
		conn, err := grpc.NewClient(process.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(j, err)
		j.Cleanup(func() { _ = conn.Close() })
		a.client = rls.NewRateLimitServiceClient(conn)
		p.products = append(p.products, a)
	}
	weir, err := j.build.StartRLS(ctx, j.memcached, filepath.Join(root, "ratelimit", "config"), "-key-prefix", prefix, "-store-timeout", "5s")
	add(asked{name: weirName}, weir, err)
	variables := []string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true", "CACHE_KEY_PREFIX=" + prefix + "other"}
	weir, err = j.build.StartAsRatelimit(ctx, j.memcached, root, append(variables, "WEIR_STORE_TIMEOUT=5s")...)
	add(asked{name: weirName + " by the variables of " + ratelimitName, as: true}, weir, err)
	if j.ratelimit == "" {
		return p
	}
	m := benchtest.Memcached(j.T)
	p.store, err = testbed.DialMemcached(ctx, m.Addr)
	require.NoError(j, err)
	j.Cleanup(func() { _ = p.store.Conn.Close() })
	peer, err := testbed.StartRatelimit(ctx, j.ratelimit, m.Addr, root, askingAtOnce, variables...)
	add(asked{name: ratelimitName, other: true, as: true}, peer, err)
	return p
}

// limitsIn returns a new folder in which the products look for files of limits.
func limitsIn(t *testing.T, files map[string]string) (root string) {
	root = t.TempDir()
	folder := filepath.Join(root, "ratelimit", "config")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
	}
	return root
}

// ask asks all products the same.
func (p *panel) ask(ctx context.Context, request *rls.RateLimitRequest) []answer {
	answers := make([]answer, len(p.products))
	for i, product := range p.products {
		a := &answers[i]
		a.response, a.err = product.client.ShouldRateLimit(ctx, request, grpc.WaitForReady(true))
		for _, s := range a.response.GetStatuses() {
			if product.other && s.CurrentLimit != nil {
				p.due.Add(1)
			}
		}
	}
	return answers
}

// awaitCounts waits until the other product has counted what it was asked, which it does after it
// has answered.
func (p *panel) awaitCounts(ctx context.Context) error {
	if p.store == nil {
		return nil
	}
	due := p.due.Load()
	err := testbed.Poll(ctx, settling, time.Millisecond, func() (bool, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		lines, err := p.store.Do("stats", "END")
		stats := make(map[string]int64)
		for _, line := range lines {
			if fields := strings.Fields(line); len(fields) == 3 {
				stats[fields[1]], _ = strconv.ParseInt(fields[2], 10, 64)
			}
		}
		// What isn't there to be counted is added.
		return stats["incr_hits"]+stats["incr_misses"] >= due && stats["cmd_set"] >= stats["incr_misses"], err
	})
	if err != nil {
		err = fmt.Errorf("%s has lost counts, which it does where its Memcached takes half a second; its answers can't be compared: %w", ratelimitName, err)
	}
	return err
}
