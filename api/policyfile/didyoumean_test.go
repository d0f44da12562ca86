package policyfile

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log"}
	for s, want := range map[string]string{
		"fixed_windw": "fixed_window", "Fixed-Window": "fixed_window", "fixedwindow": "fixed_window", "ifxed_window": "fixed_window",
		"fixed": "fixed_window", "log": "sliding_log", "leaky": "leaky_bucket",
		"sliding": "", "bucket": "", "window": "", "gcra": "", "": "", "lo": "", "x": "",
		"sliding_windows": "sliding_window", "sliding-logs": "sliding_log", "tokenbuket": "token_bucket",
	} {
		assert.Equal(t, want, Nearest(s, names), s)
	}
	assert.Equal(t, "deny", Nearest("dney", []string{"local", "allow", "deny"}))
	assert.Empty(t, Nearest("refuse", []string{"local", "allow", "deny"}))
	assert.Empty(t, Nearest("anything", nil))
	assert.Equal(t, `did you mean "a-1"?`, didYouMean("a_1", []string{"a-1"}))
	assert.Empty(t, didYouMean("b", []string{"long-name"}))
}

func TestEdits(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"abc", ""}: 3, {"", "ab"}: 2, {"abc", "abc"}: 0, {"abc", "abd"}: 1, {"abc", "acb"}: 1, {"abc", "ab"}: 1, {"abc", "xabc"}: 1,
		{"kitten", "sitting"}: 3, {"abcd", "badc"}: 2,
	} {
		assert.Equal(t, want, edits(pair[0], pair[1]), pair)
		assert.Equal(t, want, edits(pair[1], pair[0]), pair)
	}
}
