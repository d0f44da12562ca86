package load

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
)

// A target is what is loaded, and the memcached servers whose commands are
// counted.
type target struct {
	endpoint
	stores []*testbed.MemcachedConn
	stop   func()
}

// openTargets connects to the memcached servers of the targets, and asks those
// that have no name what they are. If there are none it starts one.
func openTargets(ctx context.Context, cfg config) (targets []*target, err error) {
	for _, e := range cfg.targets {
		t := &target{endpoint: e, stop: func() {}}
		targets = append(targets, t)
		for _, addr := range e.memcached {
			store, err := testbed.DialMemcached(ctx, addr)
			if err != nil {
				closeAll(targets)
				return nil, err
			}
			t.stores = append(t.stores, store)
		}
		if t.name == "" && t.format != envoyGRPCFormat {
			t.name = identify(ctx, t.addr)
		}
	}
	if len(targets) == 0 {
		own, err := startTarget(ctx, cfg.profiles)
		if err != nil {
			return nil, err
		}
		targets = append(targets, own)
	}
	return targets, nil
}

func closeAll(targets []*target) {
	for _, t := range targets {
		t.close()
	}
}

// identify returns what the server at an address calls itself: weir by its
// metrics, others by the Server header. It is "" if the server doesn't tell.
func identify(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, loadgen.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return ""
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	metrics, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20)) // what has come of it will do
	if version := buildInfo.FindSubmatch(metrics); version != nil {
		return "weir " + string(version[1])
	}
	return response.Header.Get("Server")
}

var buildInfo = regexp.MustCompile(`(?m)^weir_build_info\{.*version="([^"]*)"`)

// startTarget starts weir and memcached.
func startTarget(ctx context.Context, profiles string) (*target, error) {
	build, err := testbed.BuildWeir(ctx, "", profiles)
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	m, weir, stop, err := build.StartOn(ctx, 1024)
	if err != nil {
		return nil, err
	}
	return &target{endpoint{addr: weir.Addr, format: weirFormat}, []*testbed.MemcachedConn{m.MemcachedConn}, stop}, nil
}

func (t *target) close() {
	for _, s := range t.stores {
		s.Conn.Close()
	}
	t.stop()
}

// stats returns the sum of all memcached servers' counts.
func (t *target) stats() (testbed.StoreStats, error) {
	var sum testbed.StoreStats
	for _, s := range t.stores {
		stats, err := s.Stats()
		if err != nil {
			return sum, err
		}
		sum = sum.Plus(stats)
	}
	return sum, nil
}

// memcachedVersion returns the versions of the memcached servers; "" for none.
func (t *target) memcachedVersion() (string, error) {
	var versions []string
	for _, s := range t.stores {
		lines, err := s.Do("version", "VERSION")
		if err != nil {
			return "", err
		}
		versions = append(versions, strings.TrimPrefix(lines[0], "VERSION "))
	}
	return strings.Join(slices.Compact(versions), ", "), nil
}
