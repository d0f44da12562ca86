package policy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Durations matches a Go duration without a sign, or days and one, as in 7d or
// 1d12h. The schema of policy files has it too.
var Durations = regexp.MustCompile(`^([0-9]+d)?(([0-9]+[.]?[0-9]*|[.][0-9]+)(h|m|s|ms|us|µs|ns))*$`)

// ParseDuration parses a duration as policy files and overrides have it.
func ParseDuration(s string) (time.Duration, error) {
	if !Durations.MatchString(s) {
		return 0, fmt.Errorf("%q is not a duration", s)
	}
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	d := time.Duration(n) * 24 * time.Hour
	if err != nil || rest == "" {
		return d, err
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}
