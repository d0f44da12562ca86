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
	fmt.Println(replay(n, os.Stdout))
}
