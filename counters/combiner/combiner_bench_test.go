package combiner

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// incrementer counts in a memcached over one TCP connection, one command at a
// time.
type incrementer struct {
	conn    net.Conn
	reader  *bufio.Reader
	command []byte
}

// newIncrementer starts a memcached of its own.
func newIncrementer(tb testing.TB) *incrementer {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	address := listener.Addr().String()
	_, port, err := net.SplitHostPort(address)
	require.NoError(tb, err)
	require.NoError(tb, listener.Close())
	server := exec.Command("memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", port, "-t", "1")
	require.NoError(tb, server.Start())
	tb.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	var conn net.Conn
	require.Eventually(tb, func() bool {
		conn, err = net.Dial("tcp", address)
		return err == nil
	}, 5*time.Second, time.Millisecond)
	tb.Cleanup(func() { _ = conn.Close() })
	i := &incrementer{conn: conn, reader: bufio.NewReader(conn)}
	_, err = conn.Write([]byte("set k 0 0 1\r\n0\r\n"))
	require.NoError(tb, err)
	reply, err := i.reader.ReadString('\n')
	require.NoError(tb, err)
	require.Equal(tb, "STORED\r\n", reply)
	return i
}

func (i *incrementer) add(n int) (int, error) {
	i.command = strconv.AppendInt(append(i.command[:0], "incr k "...), int64(n), 10)
	i.command = append(i.command, '\r', '\n')
	if _, err := i.conn.Write(i.command); err != nil {
		return 0, err
	}
	line, err := i.reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	total := 0
	for _, digit := range line[:len(line)-2] {
		if digit < '0' || digit > '9' {
			return 0, fmt.Errorf("memcached answered %q", line)
		}
		total = 10*total + int(digit-'0')
	}
	return total, nil
}

// positions answers each call with the sum up to and including its question,
// after one addition for them all.
func positions(add func(sum int) (int, error)) func(context.Context, *Batch[int, int]) {
	return func(_ context.Context, batch *Batch[int, int]) {
		sum := 0
		for _, call := range batch.Calls() {
			sum += call.Request
		}
		total, err := add(sum)
		position := total - sum
		for _, call := range batch.Calls() {
			position += call.Request
			call.Result, call.Err = position, err
		}
	}
}

func inMemory() func(int) (int, error) {
	total := 0
	return func(sum int) (int, error) {
		total += sum
		return total, nil
	}
}

func BenchmarkCombinerAlone(b *testing.B) {
	ctx := &checkContext{b.Context(), time.Now().Add(time.Hour)}
	b.Run("noop", func(b *testing.B) {
		var p Place[int, int]
		c := New(positions(inMemory()))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = c.Do(ctx, &p, 1, nil, nil)
		}
	})
	// Round trips vary more between two runs than a combiner costs, so they
	// take turns here.
	b.Run("incr", func(b *testing.B) {
		store := newIncrementer(b)
		var p Place[int, int]
		c := New(positions(store.add))
		var direct, combined time.Duration
		for b.Loop() {
			start := time.Now()
			_, err := store.add(1)
			middle := time.Now()
			_, combinedErr := c.Do(ctx, &p, 1, nil, nil)
			direct += middle.Sub(start)
			combined += time.Since(middle)
			if err != nil || combinedErr != nil {
				b.Fatal(err, combinedErr)
			}
		}
		b.ReportMetric(float64(direct)/float64(b.N), "direct-ns")
		b.ReportMetric(float64(combined)/float64(b.N), "combined-ns")
		b.ReportMetric(100*float64(combined-direct)/float64(direct), "overhead-%")
	})
}

func BenchmarkCombinerHotKey(b *testing.B) {
	spin := inMemory()
	stores := []struct {
		name string
		add  func(int) (int, error)
	}{
		{"noop", inMemory()},
		{"20us", func(sum int) (int, error) {
			for start := time.Now(); time.Since(start) < 20*time.Microsecond; {
			}
			return spin(sum)
		}},
		{"incr", newIncrementer(b).add},
	}
	for _, store := range stores {
		for _, callers := range []int{16, 256, 4096} {
			b.Run(fmt.Sprintf("%s/callers=%d", store.name, callers), func(b *testing.B) {
				var batches atomic.Int64
				var p Place[int, int]
				c := New(positions(func(sum int) (int, error) {
					batches.Add(1)
					return store.add(sum)
				}))
				b.ReportAllocs()
				var calls atomic.Int64
				var running sync.WaitGroup
				for range callers {
					running.Go(func() {
						// Each check has a context of its own.
						cancellable, cancel := context.WithCancel(b.Context())
						defer cancel()
						ctx := &checkContext{cancellable, time.Now().Add(time.Hour)}
						for calls.Add(1) <= int64(b.N) {
							if _, err := c.Do(ctx, &p, 1, nil, nil); err != nil {
								b.Error(err)
							}
						}
					})
				}
				running.Wait()
				b.ReportMetric(float64(b.N)/float64(batches.Load()), "calls/batch")
			})
		}
	}
}
