package load

// A search finds the highest rate that holds: by doubling or halving until it
// is between two rates, then by halving what is between them. It is not safe
// for concurrent use.
type search struct {
	resolution float64 // ends when the lowest rate that failed is at most so many times the highest that held

	rate         float64 // to try next; 0 when the search has ended
	held, failed int     // votes about rate
	low, high    float64 // the highest rate that held and the lowest that failed; 0 for none
}

func newSearch(start, resolution float64) *search {
	return &search{resolution: resolution, rate: start}
}

// vote says whether the rate held in one try.
func (s *search) vote(held bool) {
	if held {
		s.held++
	} else {
		s.failed++
	}
	switch {
	case s.held == votes:
		s.low = s.rate
	case s.failed == votes:
		s.high = s.rate
	default:
		return
	}
	s.held, s.failed, s.rate = 0, 0, s.next()
}

// next returns the rate to try after the last was decided.
func (s *search) next() float64 {
	switch {
	case s.high == 0 && 2*s.low <= mostRate:
		return 2 * s.low
	case s.low == 0 && s.high/2 >= leastRate:
		return s.high / 2
	case s.low > 0 && s.high > s.low*s.resolution:
		return (s.low + s.high) / 2
	default:
		return 0
	}
}

// leastRate is the lowest that is tried.
const leastRate = 100
