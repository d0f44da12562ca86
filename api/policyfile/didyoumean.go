package policyfile

import (
	"fmt"
	"strings"
)

// didYouMean suggests the one of names that was probably meant by s, which is
// none of them. It is "" if there is none.
func didYouMean(s string, names []string) string {
	if name := Nearest(s, names); name != "" {
		return fmt.Sprintf("did you mean %q?", name)
	}
	return ""
}

// Nearest returns the name that was probably meant by s: the one that differs in
// the fewest letters, and in at most a third of them, or else the only one that
// s is a part of, as fixed is of fixed_window. It is "" if there is none.
// Capitals, - and _ don't matter.
func Nearest(s string, names []string) string {
	const shortest = 3 // a shorter part of a name says nothing
	plain := strings.NewReplacer("-", "", "_", "", " ", "")
	s = plain.Replace(strings.ToLower(s))
	found, least := "", max(1, len(s)/3)+1
	var parts []string
	for _, name := range names {
		other := plain.Replace(strings.ToLower(name))
		if n := edits(s, other); n < least {
			found, least = name, n
		}
		if len(s) >= shortest && strings.Contains(other, s) {
			parts = append(parts, name)
		}
	}
	if found == "" && len(parts) == 1 {
		return parts[0]
	}
	return found
}

// edits returns how many letters have to be added, left out, changed or swapped
// with the next one to make b of a.
func edits(a, b string) int {
	// The edits for the first i-2, i-1 and i letters of a: row[j] is for the
	// first j letters of b.
	var before, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j], row[j-1]) + 1
			if a[i-1] == b[j-1] {
				row[j] = min(row[j], last[j-1])
			} else {
				row[j] = min(row[j], last[j-1]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
