package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// rates returns what the search tries on a server that holds so many checks per
// second.
func (s *search) rates(capacity float64) []float64 {
	var tried []float64
	for s.rate > 0 {
		tried = append(tried, s.rate)
		s.vote(s.rate <= capacity)
	}
	return tried
}

func TestSearch(t *testing.T) {
	for _, tt := range []struct {
		name      string
		capacity  float64
		tried     []float64 // twice each
		low, high float64
	}{
		{"above the first rate", 20_000, []float64{4000, 8000, 16000, 32000, 24000, 20000, 22000}, 20000, 22000},
		{"below the first rate", 700, []float64{4000, 2000, 1000, 500, 750, 625, 687.5}, 687.5, 750},
		{"nothing", 0, []float64{4000, 2000, 1000, 500, 250, 125}, 0, 125},
		{"everything", 1e9, []float64{4000, 8000, 16000, 32000, 64000, 128000, 256000, 512000}, 512000, 0},
	} {
		s := newSearch(4000, 1.1)
		var twice []float64
		for _, rate := range tt.tried {
			twice = append(twice, rate, rate)
		}
		assert.Equal(t, twice, s.rates(tt.capacity), tt.name)
		assert.Equal(t, []float64{tt.low, tt.high}, []float64{s.low, s.high}, tt.name)
	}
}

func TestOneStallDoesNotDecideTheSearch(t *testing.T) {
	s := newSearch(4000, 1.1)
	for _, held := range []bool{true, false, true} {
		assert.InDelta(t, 4000.0, s.rate, 0)
		s.vote(held)
	}
	assert.InDelta(t, 8000.0, s.rate, 0)
	assert.InDelta(t, 4000.0, s.low, 0)
	for _, held := range []bool{false, true, false} {
		assert.InDelta(t, 8000.0, s.rate, 0)
		s.vote(held)
	}
	assert.InDelta(t, 6000.0, s.rate, 0)
	assert.InDelta(t, 8000.0, s.high, 0)
}

func TestSearchFindsTheCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(200, 500_000).Draw(t, "capacity")
		s := newSearch(firstRate, 1.1)
		assert.Less(t, len(s.rates(capacity)), 50)
		assert.LessOrEqual(t, s.low, capacity)
		assert.Greater(t, s.high, capacity)
		assert.LessOrEqual(t, s.high, s.low*1.1)
	})
}
