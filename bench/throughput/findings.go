package throughput

import (
	"fmt"
	"strings"

	"weir/bench/internal/report"
)

// Findings implements report.Finder.
func (r *Report) Findings() []report.Finding {
	var said []string
	for _, t := range traffics {
		least, most := 0.0, 0.0
		for _, c := range r.Checks {
			if c.Traffic != t.Name {
				continue
			}
			if least == 0 || c.Ratio < least {
				least = c.Ratio
			}
			most = max(most, c.Ratio)
		}
		if least > 0 {
			said = append(said, fmt.Sprintf("%.0f%% to %.0f%% for %s", 100*least, 100*most, t.Name))
		}
	}
	if len(said) == 0 {
		return nil
	}
	return []report.Finding{{Text: fmt.Sprintf(
		"**What a check costs**: by algorithm weir answers so many checks a second, in parts of what an HTTP handler answers that does nothing: %s.", strings.Join(said, ", "))}}
}
