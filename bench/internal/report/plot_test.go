package report

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWholeTicks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		low, high float64
		want      []string
	}{
		{0, 5, []string{"0", "1", "2", "3", "4", "5"}}, {0, 6.4, []string{"0", "2", "4", "6"}}, {-12, 7, []string{"-10", "-5", "0", "5"}},
		{0, 210, []string{"0", "50", "100", "150", "200"}}, {0.2, 0.9, nil},
	} {
		var labels []string
		for _, tick := range (WholeTicks{}).Ticks(tt.low, tt.high) {
			labels = append(labels, tick.Label)
		}
		assert.Equal(t, tt.want, labels, "%g to %g", tt.low, tt.high)
	}
}
