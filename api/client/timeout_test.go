package client_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/api/client"
)

// Each call has a second of its own, whoever is in its batch and whether that
// is under way.
func TestEachCallEndsInItsOwnTime(t *testing.T) {
	t.Parallel()
	type sent struct {
		at     time.Duration
		checks []string
	}
	type ended struct {
		at, wait time.Duration
		err      error
	}
	const ms = time.Millisecond
	for _, tt := range []struct {
		what    string
		takes   []time.Duration // the batches; 0 is without end
		calls   []time.Duration // when they come; a check is the number of its call
		leaves  map[int]time.Duration
		batches []sent
		ends    []ended
	}{
		{
			"one after the other", []time.Duration{100 * ms, 100 * ms}, []time.Duration{0, 300 * ms}, nil,
			[]sent{{0, []string{"0"}}, {300 * ms, []string{"1"}}},
			[]ended{{100 * ms, 0, nil}, {400 * ms, 1, nil}},
		},
		{
			"two side by side", []time.Duration{100 * ms, 100 * ms}, []time.Duration{0, 50 * ms}, nil,
			[]sent{{0, []string{"0"}}, {50 * ms, []string{"1"}}},
			[]ended{{100 * ms, 0, nil}, {150 * ms, 1, nil}},
		},
		{
			"weir is silent", []time.Duration{0, 0, 0, 0}, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}, nil,
			[]sent{{0, []string{"0"}}, {100 * ms, []string{"1"}}, {1000 * ms, []string{"2", "3"}}, {1500 * ms, []string{"4"}}},
			[]ended{
				{1000 * ms, 0, context.DeadlineExceeded}, {1100 * ms, 0, context.DeadlineExceeded}, {1300 * ms, 0, context.DeadlineExceeded},
				{1700 * ms, 0, context.DeadlineExceeded}, {2500 * ms, 0, context.DeadlineExceeded},
			},
		},
		{
			"an answer that is late for the first", []time.Duration{500 * ms, 900 * ms, 700 * ms},
			[]time.Duration{0, 50 * ms, 100 * ms, 300 * ms, 400 * ms}, nil,
			[]sent{{0, []string{"0"}}, {50 * ms, []string{"1"}}, {500 * ms, []string{"2", "3", "4"}}},
			[]ended{{500 * ms, 0, nil}, {950 * ms, 1, nil}, {1100 * ms, 0, context.DeadlineExceeded}, {1200 * ms, 3, nil}, {1200 * ms, 4, nil}},
		},
		{
			"those who left aren't waited for", []time.Duration{900 * ms, 950 * ms, 400 * ms},
			[]time.Duration{0, 50 * ms, 100 * ms, 200 * ms, 800 * ms}, map[int]time.Duration{2: 300 * ms, 3: 1000 * ms},
			[]sent{{0, []string{"0"}}, {50 * ms, []string{"1"}}, {900 * ms, []string{"3", "4"}}},
			[]ended{{900 * ms, 0, nil}, {1000 * ms, 1, nil}, {300 * ms, 0, context.Canceled}, {1000 * ms, 0, context.Canceled}, {1300 * ms, 4, nil}},
		},
		{
			"all leave before their batch does", []time.Duration{700 * ms, 800 * ms, 100 * ms},
			[]time.Duration{0, 50 * ms, 100 * ms, 600 * ms}, map[int]time.Duration{2: 500 * ms},
			[]sent{{0, []string{"0"}}, {50 * ms, []string{"1"}}, {700 * ms, []string{"3"}}},
			[]ended{{700 * ms, 0, nil}, {850 * ms, 1, nil}, {500 * ms, 0, context.Canceled}, {800 * ms, 3, nil}},
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var mu sync.Mutex
				var batches []sent
				b := client.NewBatcher(time.Second, func(ctx context.Context, checks []string) ([]time.Duration, error) {
					mu.Lock()
					takes := tt.takes[len(batches)]
					batches = append(batches, sent{time.Since(start), checks})
					mu.Unlock()
					if takes == 0 {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(takes)
					waits := make([]time.Duration, len(checks))
					for i, check := range checks {
						waits[i] = time.Duration(check[0] - '0')
					}
					return waits, nil
				})
				ends := make([]ended, len(tt.calls))
				var group sync.WaitGroup
				for i, at := range tt.calls {
					group.Go(func() {
						time.Sleep(at)
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						if left, ok := tt.leaves[i]; ok {
							defer time.AfterFunc(left-at, cancel).Stop()
						}
						wait, err := b.Do(ctx, string(rune('0'+i)))
						ends[i] = ended{time.Since(start), wait, err}
					})
				}
				group.Wait()
				assert.Equal(t, tt.batches, batches)
				for i, end := range ends {
					assert.ErrorIs(t, end.err, tt.ends[i].err, "call %d", i)
					end.err = tt.ends[i].err
					assert.Equal(t, tt.ends[i], end, "call %d", i)
				}
				synctest.Wait()
				assert.Zero(t, b.Underway())
			})
		})
	}
}
