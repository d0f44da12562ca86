package simulate

import (
	"fmt"
	"os"
	"testing"
)

func TestOne(t *testing.T) {
	var n uint64
	fmt.Sscan(os.Getenv("SEED"), &n)
	if n == 0 {
		t.Skip()
	}
	fmt.Println(replayMut(n, os.Stdout))
}
func replayMut(seed uint64, out *os.File) error {
	_, v := simulate(seed, mut(), out)
	return fmt.Errorf("%v", v)
}
