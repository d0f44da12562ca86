package report

import (
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
	assert.Equal(t, "AMD EPYC: 3", cpuModel("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC: 3\n\nmodel name\t: other\n"))
	assert.Empty(t, cpuModel("Features\t: fp\n"))
	assert.Positive(t, ThisMachine("1.6.38").Cores)
}
