package simulate

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"
	"time"
	"weir/counters"
)

func TestSurvey(t *testing.T) {
	n := uint64(2000)
	if v := os.Getenv("N"); v != "" {
		fmt.Sscan(v, &n)
	}
	count := map[string]int{}
	firsts := map[string][]uint64{}
	start := time.Now()
	for seed := uint64(1); seed <= n; seed++ {
		s, v := simulate(seed, mut(), nil)
		for _, x := range v {
			k := s.algorithm + " " + x[:strings.Index(x, ":")]
			if s.countDenied {
				k += " cd"
			}
			if strings.HasPrefix(x, "retry") {
				k += fmt.Sprintf(" skew=%v mixed=%v", s.skew > 0, s.maxCost > 1)
			}
			switch {
			case strings.HasPrefix(x, "bound") && s.faults.refunds && (s.faults.resets || s.burst > 0):
				k = "refund"
			case strings.HasPrefix(x, "bound") && s.algorithm == strict && s.skew > 0:
				k = "strict clocks"
			case strings.HasPrefix(x, "retry") && s.maxCost > 1:
				k = "retry mixed"
			case strings.Contains(x, "other instances"):
				k = "contended"
			default:
				k = "??? " + k + " " + s.faults.String()
			}
			count[k]++
			if len(firsts[k]) < 8 {
				firsts[k] = append(firsts[k], seed)
			}
			break
		}
	}
	fmt.Println(time.Since(start) / time.Duration(n))
	var ks []string
	for k := range count {
		ks = append(ks, k)
	}
	sort.Strings(ks)
	for _, k := range ks {
		fmt.Println(k, count[k], firsts[k])
	}
}

func mut() mutation {
	if os.Getenv("H") == "" {
		return mutation{}
	}
	return mutation{options: func(s *scenario, o *counters.Options) { o.ClockSkew = s.skew + s.timeout }}
}
