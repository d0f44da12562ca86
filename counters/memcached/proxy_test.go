package memcached

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

// openScripted returns a store, for use in virtual time, on a server that gives each command
// the answer that answer returns, by its line.
func openScripted(t *testing.T, answer func(command string) string) *Store {
	s, err := newStore(Config{Servers: []string{"192.0.2.1:1"}}, func(*server) pipeline.DialFunc {
		return func(context.Context, string, string) (net.Conn, error) {
			conn, peer := net.Pipe()
			go func() {
				for r := bufio.NewReader(peer); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					if strings.HasPrefix(line, "add ") || strings.HasPrefix(line, "cas ") {
						_, _ = r.ReadString('\n')
					}
					_, _ = io.WriteString(peer, answer(strings.TrimSpace(line)))
				}
			}()
			return conn, nil
		}
	}, nil)
	require.NoError(t, err)
	return s
}

// What a proxy says late of a server that hasn't answered it tells as little as if it said so in time.
func TestALateErrorOfAProxyTellsNothing(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]error{
		"SERVER_ERROR timeout\r\n":                      counters.ErrUnavailable,
		"SERVER_ERROR out of memory storing object\r\n": counters.ErrNotSent,
		"NOT_FOUND\r\n":                                 counters.ErrNotSent,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := openScripted(t, func(command string) string {
				if strings.HasPrefix(command, "get") {
					return "END\r\n"
				}
				time.Sleep(2 * counters.DefaultTimeout)
				return reply
			})
			const key = "weir:p/l:1000:c_1"
			for name, operate := range map[string]func() error{
				"Add": func() error { return addTo(s, key, counters.DefaultTimeout) },
				"Swap": func() error {
					_, _, err := s.Swap(context.Background(), key, counters.State{}, []byte("1"), time.Minute)
					return err
				},
				"AddMany": func() (failed error) {
					s.AddMany(context.Background(), []string{key}, func(_ int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
						return append(to, counters.Addition{Key: key, Delta: 1, TTL: time.Minute, Have: true}), counters.Now
					}, func(_ int, added []counters.Added, _ error) bool {
						failed = added[0].Err
						return false
					})
					return failed
				},
				"SwapMany": func() (failed error) {
					s.SwapMany(context.Background(), []string{key}, func(int) (counters.Replacement, counters.Turn) {
						return counters.Replacement{Key: key, Value: []byte("1"), TTL: time.Minute}, counters.Now
					}, func(_ int, _ counters.State, _ bool, err error) bool {
						failed = err
						return false
					})
					return failed
				},
			} {
				told := make(chan error, 1)
				var unanswered *counters.Unanswered
				require.ErrorAs(t, operate(), &unanswered, name)
				unanswered.WhenKnown(func(err error) { told <- err })
				err := <-told
				assert.ErrorIs(t, err, want, "%s: %q", name, reply)
				assert.Equal(t, want == counters.ErrNotSent, errors.Is(err, counters.ErrNotSent), "%s: %q", name, reply)
			}
			require.NoError(t, s.Close())
		})
	}
}

// What couldn't be read for one addition fails no other one that reads nothing.
func TestAReadingThatFailsIsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := openScripted(t, func(command string) string {
			if strings.HasPrefix(command, "get") {
				return "SERVER_ERROR timeout\r\n"
			}
			return "1\r\n"
		})
		keys := []string{"weir:p/l:1000:reads_1", "weir:p/l:1000:counts_1"}
		errs := make([]error, len(keys))
		s.AddMany(context.Background(), keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
			a := counters.Addition{Key: keys[i], Delta: 1, TTL: time.Minute, Have: true}
			if i == 0 {
				a.Read, a.Counts = []string{"weir:p/l:1000:reads_reset"}, make([]int64, 1)
			}
			return append(to, a), counters.Now
		}, func(i int, added []counters.Added, err error) bool {
			errs[i] = cmp.Or(err, added[0].Err)
			return false
		})
		assert.ErrorIs(t, errs[0], counters.ErrUnavailable)
		assert.NoError(t, errs[1])
		require.NoError(t, s.Close())
	})
}
