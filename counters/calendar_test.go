package counters_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

func TestCalendar(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		now     time.Time
		width   time.Duration
		number  int64
		elapsed time.Duration
	}{
		{time.Unix(0, 0), time.Minute, 0, 0},
		{time.Unix(59, 999_999_999), time.Minute, 0, time.Minute - 1},
		{time.Unix(60, 0), time.Minute, 1, 0},
		{time.Unix(-1, 0), time.Minute, -1, 59 * time.Second},
		{time.Unix(-60, 0), time.Minute, -1, 0},
		{time.Date(2023, 7, 15, 7, 10, 23, 0, time.UTC), time.Minute, time.Date(2023, 7, 15, 7, 10, 0, 0, time.UTC).Unix() / 60, 23 * time.Second},
		// By UTC a day begins at midnight, and 7 days on a Thursday: wherever it is.
		{time.Date(2026, 7, 2, 2, 0, 0, 0, time.FixedZone("", 2*60*60)), 7 * 24 * time.Hour, 2948, 0},
		{time.Date(2026, 7, 1, 23, 59, 59, 0, time.UTC), 7 * 24 * time.Hour, 2947, 7*24*time.Hour - time.Second},
		{time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), 24 * time.Hour, 20635, 0},
		{time.Unix(60, 5), 0, 60_000_000_005, 0},
		{time.Unix(60, 5), -time.Minute, 60_000_000_005, 0},
		{time.Unix(1_700_000_000, 0), counters.MaxWindow, 53, 1_700_000_000*time.Second - 53*counters.MaxWindow},
	} {
		assert.Equal(t, counters.CalendarWindow{Number: test.number, Elapsed: test.elapsed},
			counters.Calendar(test.now, test.width), "%v by %v", test.now, test.width)
	}
}
