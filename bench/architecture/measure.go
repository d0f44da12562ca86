package architecture

import (
	"iter"
	"slices"
	"time"

	"weir/bench/traffic"
	"weir/counters"
)

// Figures are what an architecture did.
type Figures struct {
	Requests int `json:"requests"`
	Admitted int `json:"admitted"`
	// Fullest is the most that one client was admitted in any window (t-W, t].
	Fullest int `json:"fullest"`
	// Calendar is that in any of the windows that follow each other from the Unix
	// epoch on.
	Calendar int `json:"calendar"`
	// WronglyDenied are requests that were denied when fewer than the limit had
	// been admitted in the window that ended with them.
	WronglyDenied int `json:"wrongly_denied"`
	Messages      int `json:"messages"`
}

// clientLog is what one client was admitted.
type clientLog struct {
	window   recent
	calendar int64 // window, and how many in it
	count    int
}

// Measure has an architecture decide all arrivals. The error is the
// architecture's.
func Measure(limit Limit, arch Architecture, arrivals iter.Seq[traffic.Arrival]) (Figures, error) {
	var f Figures
	clients := newPerClient(func() *clientLog { return &clientLog{window: recent{length: limit.Window}} })
	for a := range arrivals {
		o, err := arch.Take(a)
		if err != nil {
			return Figures{}, err
		}
		f.Requests++
		f.Messages += o.Messages
		client := clients.of(a.Client)
		before := client.window.count(a.At)
		if !o.Admitted {
			if before < limit.Requests {
				f.WronglyDenied++
			}
			continue
		}
		f.Admitted++
		client.window.add(a.At)
		f.Fullest = max(f.Fullest, before+1)
		f.Calendar = max(f.Calendar, client.inCalendar(a.At, limit.Window))
	}
	return f, nil
}

// inCalendar counts an admission and returns how many its calendar window has.
func (c *clientLog) inCalendar(at, window time.Duration) int {
	if number := counters.Calendar(begin.Add(at), window).Number; number != c.calendar {
		c.calendar, c.count = number, 0
	}
	c.count++
	return c.count
}

// Busiest returns the load of the busiest of so many instances in the mean load
// of all, by the requests that a balancer with sticky sessions sends them from a
// time on.
func Busiest(s *Sticky, instances int, from time.Duration, arrivals iter.Seq[traffic.Arrival]) float64 {
	loads := make([]int, instances)
	all := 0
	for a := range arrivals {
		if instance := s.Instance(a); a.At >= from {
			loads[instance]++
			all++
		}
	}
	return float64(slices.Max(loads)) * float64(instances) / float64(all)
}
