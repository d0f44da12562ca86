package simulate

import (
	"bytes"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"
	"time"
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
		s, v := simulate(seed, mutation{}, nil)
		for _, x := range v {
			k := s.algorithm + " " + x[:strings.Index(x, ":")]
			if s.countDenied {
				k += " cd"
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

func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= 300; seed++ {
		var a, b bytes.Buffer
		simulate(seed, mutation{}, &a)
		simulate(seed, mutation{}, &b)
		if a.String() != b.String() {
			t.Fatalf("seed %d\n%s\n%s", seed, a.String(), b.String())
		}
	}
}
