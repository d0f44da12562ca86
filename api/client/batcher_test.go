package client_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/client"
)

// callers start checks of client 0, 1, ... that all wait together.
type callers struct {
	c        *client.Client
	group    sync.WaitGroup
	admitted atomic.Int64
}

// start starts a caller of each client and returns when they wait for a batch.
func (s *callers) start(t *testing.T, clients ...string) {
	for _, name := range clients {
		s.group.Go(func() {
			a, err := s.c.Check(context.Background(), client.Check{Policy: "api", Client: name})
			if assert.NoError(t, err) && a.Allowed {
				s.admitted.Add(1)
			}
		})
	}
}

// startHeld starts weir and a client, whose first two requests are held.
func startHeld(t *testing.T) (*weir, *callers, *hold) {
	t.Helper()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	s := &callers{c: c}
	h := w.holds()
	s.startTwo(t, h)
	return w, s, h
}

// startTwo starts two callers, who don't wait for each other, and returns when
// weir holds their requests.
func (s *callers) startTwo(t *testing.T, h *hold) {
	s.start(t, "first")
	<-h.arrived
	s.start(t, "second")
	<-h.arrived
}

func names(from, to int) []string {
	var names []string
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("client-%d", i))
	}
	return names
}

func awaitWaiting(t *testing.T, c *client.Client, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return c.Waiting() == n }, patience, time.Millisecond)
}

func TestConcurrentChecksGoTogether(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	s := &callers{c: c}

	s.start(t, "alone")
	s.group.Wait()
	assert.Equal(t, []int{1}, w.batches())

	h := w.holds()
	s.startTwo(t, h) // at once
	s.start(t, names(0, 100)...)
	awaitWaiting(t, c, 100)
	assert.Equal(t, []int{1, 1}, w.batches(), "the others wait for one of these")
	close(h.release)
	s.group.Wait()
	assert.Equal(t, []int{100}, w.batches())
	assert.EqualValues(t, 103, s.admitted.Load())
}

func TestAFullBatchWaitsForNobody(t *testing.T) {
	t.Parallel()
	w, s, h := startHeld(t)
	s.start(t, names(0, 14*128)...)
	for range 14 {
		<-h.arrived
	}
	awaitWaiting(t, s.c, 0)
	s.start(t, names(2000, 3500)...)
	<-h.arrived // with sixteen under way, the next is as large as can be
	awaitWaiting(t, s.c, 500)
	assert.Equal(t, slices.Concat([]int{1, 1}, slices.Repeat([]int{128}, 14), []int{1000}), w.batches())
	close(h.release)
	s.group.Wait()
	assert.Equal(t, []int{500}, w.batches())
	assert.EqualValues(t, 2+14*128+1500, s.admitted.Load())
}

// Together they would be more than weir reads.
func TestABatchOfLargeChecksIsSplit(t *testing.T) {
	t.Parallel()
	w, s, h := startHeld(t)
	longest := 64<<10 - len(`{"policy":"api","client":"alice","limits":{"":1}}`)
	for range 135 {
		s.group.Go(func() {
			long := map[string]int64{strings.Repeat("x", longest): 1}
			_, err := s.c.Check(context.Background(), client.Check{Policy: "api", Client: "alice", Limits: long})
			assert.ErrorContains(t, err, "has no limit")
		})
	}
	<-h.arrived // at once
	awaitWaiting(t, s.c, 8)
	close(h.release)
	s.group.Wait()
	assert.Equal(t, []int{1, 1, 8, 127}, w.batches())
}

// All of a limit, and no more, whoever is in which batch.
func TestCallersOfOneClientShareItsLimit(t *testing.T) {
	t.Parallel()
	_, c := start(t, client.Config{}, newPolicy("api", fixed("api", 100)))
	var group sync.WaitGroup
	var admitted, failed atomic.Int64
	for range 64 {
		group.Go(func() {
			for range 5 {
				a, err := c.Check(context.Background(), client.Check{Policy: "api", Client: "alice"})
				if err != nil {
					failed.Add(1)
				}
				if a.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	group.Wait()
	assert.Zero(t, failed.Load())
	assert.EqualValues(t, 100, admitted.Load())
}

func TestAWrongCheckHarmsNoOther(t *testing.T) {
	t.Parallel()
	w, s, h := startHeld(t)
	s.start(t, names(0, 10)...)
	wrong := []client.Check{
		{Policy: "none", Client: "x"}, {Policy: "", Client: "x"}, {Policy: "api", Client: "x", Cost: 2},
		{Policy: "api", Client: "x", Cost: -1}, {Policy: "api", Client: "x", Cost: 1 << 62},
		{Policy: "api", Client: "x", Limits: map[string]int64{"none": 1}},
		{Policy: "api", Client: "x", Limits: map[string]int64{"per-minute": 0}},
		{Policy: "api", Client: "x", Limits: map[string]int64{"\x00\u2028": 1}},
	}
	for _, q := range wrong {
		s.group.Go(func() {
			_, err := s.c.Check(context.Background(), q)
			var problem *client.Problem
			assert.ErrorAs(t, err, &problem, "%+v", q)
		})
	}
	awaitWaiting(t, s.c, 10+len(wrong))
	close(h.release)
	s.group.Wait()
	assert.Equal(t, []int{1, 1, 10 + len(wrong)}, w.batches())
	assert.EqualValues(t, 12, s.admitted.Load())
}

func TestACallerLeaves(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	s := &callers{c: c}
	h := w.holds()

	// The one that led leaves; one that goes on waits for nothing.
	first, leaveFirst := context.WithCancel(t.Context())
	left := make(chan error, 2)
	go func() {
		_, err := c.Check(first, client.Check{Policy: "api", Client: "first"})
		left <- err
	}()
	<-h.arrived
	s.start(t, "beside")
	<-h.arrived
	second, leaveSecond := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer leaveSecond()
	go func() {
		_, err := c.Check(second, client.Check{Policy: "api", Client: "second"})
		left <- err
	}()
	assert.ErrorIs(t, <-left, context.DeadlineExceeded)
	s.start(t, "third")
	awaitWaiting(t, c, 1)
	leaveFirst()
	assert.ErrorIs(t, <-left, context.Canceled)
	<-h.arrived // the third, as nobody waits for the batch of the first
	close(h.release)
	s.group.Wait()
	asked := w.asked()
	require.Len(t, asked, 3)
	assert.Equal(t, []client.Check{{Policy: "api", Client: "third"}}, asked[2].checks, "the second was never sent")
}

// The batch goes on while somebody aboard waits for it.
func TestABatchGoesOnWhileACallerWaits(t *testing.T) {
	t.Parallel()
	w, s, h := startHeld(t)
	leaving, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := s.c.Check(leaving, client.Check{Policy: "api", Client: "leaving"})
		left <- err
	}()
	awaitWaiting(t, s.c, 1)
	s.start(t, "staying")
	awaitWaiting(t, s.c, 2)

	aboard := make(chan struct{})
	w.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		aboard <- struct{}{}
		select {
		case <-aboard:
		case <-r.Context().Done():
		}
		return false
	})
	close(h.release)
	<-aboard
	leave()
	assert.ErrorIs(t, <-left, context.Canceled)
	aboard <- struct{}{}
	s.group.Wait()
	assert.EqualValues(t, 3, s.admitted.Load())
	assert.Equal(t, []int{1, 1, 2}, w.batches())
}

// A batch that fails, fails for those aboard. The next goes on.
func TestABatchFailsAlone(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	s := &callers{c: c}
	h := w.holds()
	failed := make(chan error)
	for _, name := range []string{"first", "second"} {
		go func() {
			_, err := c.Check(context.Background(), client.Check{Policy: "api", Client: name})
			failed <- err
		}()
		<-h.arrived
	}
	s.start(t, names(0, 5)...)
	awaitWaiting(t, c, 5)
	w.answers(nil)
	w.server.CloseClientConnections()
	assert.Error(t, <-failed)
	assert.Error(t, <-failed)
	s.group.Wait()
	assert.EqualValues(t, 5, s.admitted.Load())
	close(h.release)
}
