package combiner

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Who leads at several places at a time waits at none of them, and others wait for
// it.
func TestBeginLeadsAtAnIdlePlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		p := h.place("a")
		a, b := h.combiner.Begin(h.place("a"), 1), h.combiner.Begin(h.place("b"), 2)
		require.Equal(t, []int{1}, questions(a.Calls()))
		require.Equal(t, []int{2}, questions(b.Calls()))
		assert.Nil(t, h.combiner.Begin(h.place("a"), 3), "it is in use")

		results := make(chan int, 1)
		go func() {
			result, err := h.combiner.Do(t.Context(), p, 4, nil, nil)
			assert.NoError(t, err)
			results <- result
		}()
		synctest.Wait()
		assert.Empty(t, h.turns)
		require.Equal(t, []int{1}, questions(a.Calls()), "who comes later isn't led")
		a.Calls()[0].Result = 10
		result, err := h.combiner.End(a)
		assert.NoError(t, err)
		assert.Equal(t, 10, result)
		h.turn(t, 4).answerAll()
		assert.Equal(t, 40, <-results)

		_, err = h.combiner.End(b)
		assert.NoError(t, err)
		c := h.combiner.Begin(h.place("b"), 5)
		require.NotNil(t, c)
		require.Equal(t, []int{5}, questions(c.Calls()))
		_, err = h.combiner.End(c)
		assert.NoError(t, err)
	})
}

// Who leads may have more than one question.
func TestMoreQuestionsOfALeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		p := h.place("a")
		b := h.combiner.Begin(h.place("a"), 1)
		h.combiner.Add(b, 2)
		require.Equal(t, []int{1, 2}, questions(b.Calls()))

		type outcome struct {
			first int
			more  []int
		}
		ask := func(q int, more ...int) <-chan outcome {
			done := make(chan outcome, 1)
			go func() {
				var o outcome
				var err error
				o.first, err = h.combiner.Do(t.Context(), p, q, more, func(i, result int, err error) {
					assert.NoError(t, err)
					assert.Equal(t, len(o.more), i)
					o.more = append(o.more, result)
				})
				assert.NoError(t, err)
				done <- o
			}()
			synctest.Wait()
			return done
		}
		leads, joins := ask(3, 4, 5), ask(6, 7)
		for _, call := range b.Calls() {
			require.True(t, call.Claim())
			require.True(t, call.Answer(10*call.Request, nil))
		}
		result, err := h.combiner.End(b)
		assert.NoError(t, err)
		assert.Equal(t, 10, result)
		// One of both leads, with all that it asks, and the first question of the other.
		turn := <-h.turns
		asked := turn.questions()
		turn.answerAll()
		a, c := <-leads, <-joins
		assert.Equal(t, 30, a.first)
		assert.Equal(t, 60, c.first)
		if len(asked) == 4 {
			assert.Equal(t, []int{3, 6, 4, 5}, asked)
			assert.Equal(t, []int{40, 50}, a.more)
			assert.Empty(t, c.more)
		} else {
			assert.Equal(t, []int{3, 6, 7}, asked)
			assert.Equal(t, []int{70}, c.more)
			assert.Empty(t, a.more)
		}
		h.requireIdle(t)
	})
}
