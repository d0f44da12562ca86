package simulate

import (
	_ "embed"
	"encoding/json"
	"flag"
	"os"
	"sync"
	"testing"
)

var rewrite = flag.Bool("witnesses", false, "write down which seed or plot sees each bug")

// witnesses are the seed or the plot that saw each bug, by the name of its test. They
// are tried first: a search looks at hundreds of worlds that see nothing. Where one sees
// it no more, because the code has changed, the search goes on, and the test takes longer
// until go test -run 'Seen|Needed' -witnesses writes down who does.
var witnesses struct {
	mu sync.Mutex
	of map[string]string
}

const witnessFile = "testdata/witnesses.json"

//go:embed testdata/witnesses.json
var lastWitnesses []byte

func witness(t *testing.T) string {
	witnesses.mu.Lock()
	defer witnesses.mu.Unlock()
	if witnesses.of == nil {
		if err := json.Unmarshal(lastWitnesses, &witnesses.of); err != nil {
			t.Fatalf("%s: %v", witnessFile, err)
		}
	}
	return witnesses.of[t.Name()]
}

// saw notes who has seen the bug of t.
func saw(t *testing.T, who string) {
	if before := witness(t); before != who {
		t.Logf("it is seen by %s, and no more by %s", who, before)
	}
	witnesses.mu.Lock()
	defer witnesses.mu.Unlock()
	witnesses.of[t.Name()] = who
}

// writeWitnesses writes them down, if that is asked for.
func writeWitnesses() {
	if !*rewrite {
		return
	}
	out, err := json.MarshalIndent(witnesses.of, "", "\t")
	if err == nil {
		err = os.WriteFile(witnessFile, append(out, '\n'), 0o644)
	}
	if err != nil {
		panic(err)
	}
}
