package contention

import (
	"fmt"

	"weir/bench/internal/report"
)

// Findings implements report.Finder.
func (r *Report) Findings() []report.Finding {
	one, ok1 := r.find(combinedCAS, shape{1, targetCallers})
	many, ok2 := r.find(combinedCAS, shape{targetProcesses, callersPerProcess})
	if !ok1 || !ok2 {
		return nil
	}
	return []report.Finding{{Text: fmt.Sprintf(
		"**Many callers of one key.** With %d callers in one process a token bucket makes %.0f decisions a second, %.0f times as many as the loop that reads, decides and "+
			"compares and swaps; with %d processes of %d callers %.0f, %.0f times as many.",
		targetCallers, one.Rate, one.Ratio, targetProcesses, callersPerProcess, many.Rate, many.Ratio)}}
}
