package main

import (
	"math"
	"sort"
)

// A zipf distribution of clients: the client of rank r, from 1, comes with a
// share in proportion to 1/r^s. It is safe for concurrent use.
type zipf struct {
	below []float64 // the share of all clients up to and including this one
}

// newZipf returns the distribution of so many clients, at least 1. s is not
// negative; with 0 all come equally often.
func newZipf(clients int, s float64) zipf {
	below := make([]float64, clients)
	sum := 0.0
	for i := range below {
		sum += math.Pow(float64(i+1), -s)
		below[i] = sum
	}
	for i := range below {
		below[i] /= sum
	}
	return zipf{below}
}

// client returns the number, from 0, of the client at u, which is at least 0 and
// less than 1.
func (z zipf) client(u float64) int64 {
	return int64(sort.Search(len(z.below)-1, func(i int) bool { return z.below[i] > u }))
}
