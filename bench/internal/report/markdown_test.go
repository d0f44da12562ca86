package report

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTablesOfAPageAreMarkdowns(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	page := &markdown{out: &out}
	fmt.Fprintln(page, "before")
	Table(page, "title", "name\tvalue\t", func(t io.Writer) {
		fmt.Fprintln(t, "a|b\t1\t")
		fmt.Fprintln(t, "c\t\t")
	})
	TableOf(page, "", "x\t", []int{2}, func(n int) string { return fmt.Sprintf("%d\t", n) })
	fmt.Fprint(page, "\nafter\nit\n")
	page.close()
	assert.Equal(t, "\n```text\nbefore\n```\n"+`
**title**

| name | value |
|:--|--:|
| a\|b | 1 |
| c |  |

| x |
|:--|
| 2 |
`+"\n```text\nafter\nit\n```\n", out.String())
}

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
