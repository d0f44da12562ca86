package report

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestMilliseconds(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		25 * time.Microsecond: "0.025", 1500 * time.Microsecond: "1.50", 123456 * time.Microsecond: "123.5",
	} {
		assert.Equal(t, want, Milliseconds(d))
	}
}

func TestMachine(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "2 cores, go1.26", Machine{Cores: 2, Go: "go1.26"}.String())
	assert.Equal(t, "64 cores, EPYC 9004, linux/amd64, go1.26, memcached 1.6.38",
		Machine{64, "EPYC 9004", "linux/amd64", "go1.26", "1.6.38"}.String())
	found := cpuModel.FindStringSubmatch("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC: 3\n\nmodel name\t: other\n")
	assert.Equal(t, "AMD EPYC: 3", found[1])
	assert.Nil(t, cpuModel.FindStringSubmatch("Features\t: fp\n"))
	assert.Positive(t, ThisMachine("1.6.38").Cores)
}

// columned is a result with a column of its own.
type columned struct {
	rates
	Column
}

func (c columned) Columns() []Column { return []Column{c.Column} }

func TestAlgorithmsSideBySide(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	column := func(title, means string, cells map[string]string) chapter {
		return chapter{result: columned{Column: Column{title, means, func(algorithm string) string { return cells[algorithm] }}}}
	}
	names := []string{"token", "leaky", "fixed", "log"}
	sideBySide(&out, []chapter{
		column("bytes", "of a client", map[string]string{"token": "120", "fixed": "240", "log": "5680"}),
		{result: rates{}},
		{},
		column("us", "of a check", map[string]string{"fixed": "3.0", "leaky": "4.0", "token": "5.0"}),
	}, names)
	assert.Equal(t, `
## Algorithms

| algorithm | bytes | us |
|:--|--:|--:|
| token | 120 | 5.0 |
| fixed | 240 | 3.0 |

`+"```text\nbytes           of a client\nus              of a check\n```\n", out.String())

	out.Reset()
	sideBySide(&out, []chapter{{result: rates{}}, {}}, names)
	assert.Empty(t, out.String())
}
