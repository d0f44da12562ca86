package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestZipf(t *testing.T) {
	// 1, 1/2, 1/3 and 1/4 make 25/12: shares of 0.48, 0.24, 0.16 and 0.12.
	z := newZipf(4, 1)
	for _, tt := range []struct {
		u    float64
		want int64
	}{
		{0, 0}, {0.4799, 0}, {0.4801, 1}, {0.7199, 1}, {0.7201, 2}, {0.8799, 2}, {0.8801, 3}, {0.999999999, 3},
	} {
		assert.Equal(t, tt.want, z.client(tt.u), "%g", tt.u)
	}
	// 1, 1/4 and 1/9 make 49/36.
	z = newZipf(3, 2)
	assert.Equal(t, int64(0), z.client(36.0/49-1e-9))
	assert.Equal(t, int64(1), z.client(36.0/49+1e-9))
	assert.Equal(t, int64(2), z.client(45.0/49+1e-9))

	even := newZipf(5, 0)
	for i := range int64(5) {
		assert.Equal(t, i, even.client(float64(i)/5+0.1))
	}
	assert.Zero(t, newZipf(1, 1).client(0.9))
}

func TestZipfSharesOfTheFirstRanks(t *testing.T) {
	const draws = 200_000
	z, random := newZipf(1000, 1), rand.New(rand.NewPCG(1, 1))
	counts := make(map[int64]int)
	for range draws {
		counts[z.client(random.Float64())]++
	}
	// The thousandth harmonic number is 7.4855.
	for rank, share := range []float64{0.13359, 0.06680, 0.04453, 0.03340} {
		assert.InDelta(t, share, float64(counts[int64(rank)])/draws, 0.003, "rank %d", rank+1)
	}
	assert.Greater(t, len(counts), 990)
}
