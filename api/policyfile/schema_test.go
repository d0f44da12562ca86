package policyfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"weir/api/policy"
)

const schemaFile = "../../deploy/policies.schema.json"

// A mappingSchema is what the schema says of a kind of mapping.
type mappingSchema struct {
	Properties map[string]propertySchema
}

type propertySchema struct {
	Ref              string `json:"$ref"`
	Type             string
	Enum             []string
	Minimum, Maximum *int64
	Pattern          string
}

// schemaKinds returns the kinds of mappings in the schema by their names.
func schemaKinds(t *testing.T) map[string]mappingSchema {
	t.Helper()
	data, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	var schema struct{ Definitions map[string]mappingSchema }
	require.NoError(t, json.Unmarshal(data, &schema))
	maps.DeleteFunc(schema.Definitions, func(_ string, kind mappingSchema) bool { return kind.Properties == nil })
	return schema.Definitions
}

// Each key of the loader is in the schema, and each of the schema's in the
// loader.
func TestSchemaHasTheLoadersKeys(t *testing.T) {
	t.Parallel()
	found := make(map[string][]string)
	for kind, schema := range schemaKinds(t) {
		found["a "+kind] = slices.Sorted(maps.Keys(schema.Properties))
	}
	want := make(map[string][]string)
	for _, kind := range policyKinds() {
		want[kind.name] = slices.Sorted(slices.Values(kind.keys))
	}
	assert.Equal(t, want, found)
}

// fileWith returns a policy file in which a key of a kind of mapping has a
// value, and is right but for that.
func fileWith(kind, key, value string) string {
	switch kind + " " + key {
	case "policy hold":
		return "policies: {p: {limits: [{algorithm: leaky_bucket, limit: 1, window: 1h}], hold: " + value + "}}"
	case "limit lease":
		return limit("algorithm: concurrency, limit: 1, lease: " + value)
	case "limit counts":
		return limit("algorithm: fixed_window, limit: 1, window: 1h, counts: " + value)
	case "limit algorithm":
		if value == "concurrency" {
			return limit("limit: 1, lease: 1h, algorithm: " + value)
		}
		return limit("limit: 1, window: 1h, algorithm: " + value)
	case "limit limit":
		return limit("algorithm: fixed_window, window: 1h, limit: " + value)
	case "limit window":
		return limit("limit: 1, algorithm: fixed_window, window: " + value)
	case "limit sub_windows", "limit estimate":
		return limit("algorithm: sliding_window, limit: 1, window: 1h, " + key + ": " + value)
	case "limit entries":
		return limit("algorithm: sliding_log, limit: 1, window: 1h, entries: " + value)
	case "limit burst":
		return limit("algorithm: token_bucket, limit: 1, window: 1h, burst: " + value)
	case "limit name":
		return limit("algorithm: fixed_window, limit: 1, window: 1h, name: " + value)
	}
	switch kind {
	case "client":
		return more("clients: {c: {" + key + ": " + value + "}}")
	case "route":
		// So that no cost is too high.
		file := "policies: {p: {limits: [{algorithm: fixed_window, limit: 1000000000, window: 1h}], routes: [{"
		for other, right := range map[string]string{"path": "/a", "cost": "1"} {
			if other != key {
				file += other + ": " + right + ", "
			}
		}
		return file + key + ": " + value + "}]}}"
	}
	return more(key + ": " + value)
}

// What a key may be is the same in the schema and in the loader.
func TestSchemaHasTheLoadersBounds(t *testing.T) {
	t.Parallel()
	choices := regexp.MustCompile(` must be (\w+(?: or \w+)+)`)
	judge := newJudge(t)
	for kind, schema := range schemaKinds(t) {
		for key, property := range schema.Properties {
			mistake := func(value string) string { return judge.agree(t, fileWith(kind, key, value)) }
			switch {
			case property.Enum != nil:
				for _, value := range property.Enum {
					assert.Empty(t, mistake(value), "%s: %s", key, value)
				}
				found := choices.FindStringSubmatch(mistake("something-else"))
				require.NotNil(t, found, key)
				assert.Equal(t, property.Enum, strings.Split(found[1], " or "), key)
			case property.Type == "integer":
				least, most := *property.Minimum, *property.Maximum
				assert.Empty(t, mistake(fmt.Sprint(least)), key)
				assert.Empty(t, mistake(fmt.Sprint(most)), key)
				assert.Contains(t, mistake(fmt.Sprint(least-1)), fmt.Sprintf("from %d to %d", least, most), key)
				assert.NotEmpty(t, mistake(fmt.Sprint(most+1)), key)
				assert.NotEmpty(t, mistake("1.5"), key)
				assert.NotEmpty(t, mistake("'9'"), key)
			case property.Type == "boolean":
				assert.Empty(t, mistake("true"), key)
				assert.Empty(t, mistake("false"), key)
				assert.Contains(t, mistake("'true'"), "write it without quotes", key)
			case property.Type == "string":
				assert.NotEmpty(t, mistake("5"), key)
				assert.NotEmpty(t, mistake("[a]"), key)
			default: // a list or a mapping
				assert.NotEmpty(t, mistake("word"), key)
			}
		}
	}
	assert.Contains(t, judge.agree(t, more("routes: [{path: /x, limits: {}}]")), "neither limits nor a cost")
	for _, header := range unsent {
		assert.Contains(t, judge.agree(t, more("identify: [header:"+header+"]")), "never arrives")
	}
	for _, c := range headerCharacters + methodCharacters + " /:*\"(@\\é" {
		judge.agree(t, more(fmt.Sprintf("identify: [%q]", "header:X"+string(c))))
		judge.agree(t, fileWith("route", "method", fmt.Sprintf("%q", "X"+string(c))))
		judge.agree(t, more(fmt.Sprintf("clients: {%q: {}}", "x"+string(c))))
		judge.agree(t, more(fmt.Sprintf("clients: {%q: {}}", string(c)+"x")))
		if c != ' ' && c != '.' { // what these are in a path depends on the rest of it
			judge.agree(t, fileWith("route", "path", fmt.Sprintf("%q", "/"+string(c))))
			judge.agree(t, fileWith("route", "path", fmt.Sprintf("%q", "/x"+string(c))))
		}
	}
	keys := schemaKinds(t)["limit"].Properties
	for _, property := range []propertySchema{keys["window"], keys["lease"], schemaKinds(t)["policy"].Properties["settle_within"]} {
		assert.Equal(t, policy.Durations.String(), property.Pattern)
	}
	for _, wrong := range []string{
		"algorithm: concurrency, limit: 1001, lease: 1m", "algorithm: concurrency, limit: 1, window: 1m", "algorithm: concurrency, limit: 1",
		"algorithm: fixed_window, limit: 1, window: 1m, lease: 1m", "algorithm: concurrency, limit: 1, lease: 1m, window: 1m",
	} {
		assert.NotEmpty(t, judge.agree(t, limit(wrong)), wrong)
	}
}

// A schemaJudge judges policy files by the schema.
type schemaJudge struct{ schema *jsonschema.Schema }

func newJudge(t testing.TB) schemaJudge {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(schemaFile)
	require.NoError(t, err)
	return schemaJudge{schema}
}

// verdict returns what the schema says against a file, nil for nothing. The
// file is YAML.
func (j schemaJudge) verdict(t testing.TB, text string) error {
	t.Helper()
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal([]byte(text), &document))
	if len(document.Content) == 0 {
		return j.schema.Validate(nil)
	}
	encoded, err := json.Marshal(asJSON(document.Content[0]))
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	require.NoError(t, err)
	return j.schema.Validate(value)
}

// agree requires that the schema and the loader judge a file alike, and returns
// the loader's mistake, "" if there is none.
func (j schemaJudge) agree(t testing.TB, text string) string {
	t.Helper()
	_, err := Parse("p.yaml", []byte(text))
	assert.Equal(t, err == nil, j.verdict(t, text) == nil, "the loader: %v\nthe schema: %v\n%s", err, j.verdict(t, text), text)
	if err != nil {
		return err.Error()
	}
	return ""
}

// asJSON returns what a node is as JSON.
func asJSON(n *yaml.Node) any {
	switch n = resolve(n); n.Kind {
	case yaml.MappingNode:
		object := make(map[string]any)
		for i := 0; i+1 < len(n.Content); i += 2 {
			object[n.Content[i].Value] = asJSON(n.Content[i+1])
		}
		return object
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			list[i] = asJSON(item)
		}
		return list
	}
	var value any
	switch n.Tag {
	case "!!int", "!!float", "!!bool", "!!null":
		if n.Decode(&value) == nil {
			return value
		}
	}
	return n.Value
}

// policyFiles are the policy files of this repository, by their paths from here.
func policyFiles(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, pattern := range []string{"*.yaml", "testdata/*.yaml", "../../deploy/*.yaml"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			if regexp.MustCompile(`(?m)^policies:`).Match(data) {
				files[name] = string(data)
			}
		}
	}
	for _, name := range []string{"../../README.md", "../../deploy/README.md", "../../api/README.md"} {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(data), -1) {
			if strings.Contains("\n"+block[1], "\npolicies:") {
				files[fmt.Sprintf("%s#%d", name, i)] = block[1]
			}
		}
	}
	return files
}

// Every example is right by both, and names the schema, so that editors find it.
func TestExamplesKeepToTheSchema(t *testing.T) {
	t.Parallel()
	judge := newJudge(t)
	files := policyFiles(t)
	require.Contains(t, files, "builtin.yaml")
	require.Contains(t, files, "../../README.md#0")
	modeline := regexp.MustCompile(`(?m)^# yaml-language-server: \$schema=(\S+)$`)
	want, err := os.Stat(schemaFile)
	require.NoError(t, err)
	for name, text := range files {
		assert.Empty(t, judge.agree(t, text), name)
		schema := modeline.FindStringSubmatch(text)
		if assert.NotNil(t, schema, "%s has no modeline", name) {
			found, err := os.Stat(filepath.Join(filepath.Dir(name), schema[1]))
			require.NoError(t, err, name)
			assert.True(t, os.SameFile(want, found), "%s: %s", name, schema[1])
		}
	}
}

// beyondSchema are the mistakes that a schema can't tell: what is gone once YAML
// has been read, how long a time is, and what depends on other values. Each is
// in a test's name or in a message.
var beyondSchema = []string{
	"already", "begins with 0", "a second document", "must be whole milliseconds", "cuts", `has no limit "`, "could never be admitted", "is the same as", "window beyond 64 bits", "a client's log", "must be a duration from",
	"a proxy doesn't tell",
}

// Wrong files are wrong by the schema too, but for what it can't tell.
func TestSchemaRefusesWhatTheLoaderRefuses(t *testing.T) {
	t.Parallel()
	judge := newJudge(t)
	var seen int
	for _, test := range policyMistakes() {
		var document yaml.Node
		if yaml.Unmarshal([]byte(test.text), &document) != nil {
			continue
		}
		about := test.name + "\n" + strings.Join(test.want, "\n")
		if slices.ContainsFunc(beyondSchema, func(part string) bool { return strings.Contains(about, part) }) {
			continue
		}
		seen++
		assert.Error(t, judge.verdict(t, test.text), test.name)
	}
	assert.Greater(t, seen, 60)
}
