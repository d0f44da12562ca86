package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/decide"
	"weir/api/receipt"
	"weir/counters/racetest"
)

func TestBadChecksAreRefusedAndTouchNothing(t *testing.T) {
	t.Parallel()
	const valid = `"policy":"api","client":"alice"`
	for _, test := range []struct {
		what, body, detail string
	}{
		{"empty", ``, "the body is empty; it must be a JSON object"},
		{"only space", " \n", "the body is empty; it must be a JSON object"},
		{"truncated", `{` + valid, "the body ends in the middle of its JSON"},
		{"truncated in a string", `{"policy":"ap`, "the body ends in the middle of its JSON"},
		{"not JSON", `policy=api&client=alice`, "the body is not valid JSON: "},
		{"single quotes", `{'policy':'api'}`, "the body is not valid JSON: "},
		{"trailing comma", `{` + valid + `,}`, "the body is not valid JSON: "},
		{"NUL in a string", "{\"policy\":\"api\",\"client\":\"a\x00\"}", "the body is not valid JSON: "},
		{"trailing text", `{` + valid + `} x`, "the body is not valid JSON: "},
		{"trailing object", `{` + valid + `}{}`, "something follows the JSON object in the body"},
		{"trailing brace", `{` + valid + `}}`, "the body is not valid JSON: "},
		{"an array", `[{` + valid + `}]`, "the body must be an object"},
		{"null", `null`, "the body must be an object"},
		{"a string", `"api"`, "the body must be an object"},
		{"unknown field", `{` + valid + `,"tokens":1}`, `unknown field "tokens"; known are policy, client, cost, limits`},
		{"field in capitals", `{"Policy":"api","client":"alice"}`, `unknown field "Policy"`},
		{"policy twice", `{` + valid + `,"policy":"api"}`, `duplicate object member name "policy"`},
		{"cost twice", `{` + valid + `,"cost":1,"cost":1}`, `duplicate object member name "cost"`},
		{"client twice, once escaped", `{` + valid + `,"\u0063lient":"bob"}`, "duplicate object member name"},
		{"limit twice", `{` + valid + `,"limits":{"per-minute":1,"per-minute":2}}`, `duplicate object member name "per-minute"`},

		{"policy missing", `{"client":"alice"}`, "policy is missing"},
		{"policy empty", `{"policy":"","client":"alice"}`, "policy is missing"},
		{"policy number", `{"policy":1,"client":"alice"}`, "policy must be a string"},
		{"policy null", `{"policy":null,"client":"alice"}`, "policy must be a string"},
		{"client missing", `{"policy":"api"}`, "client is missing"},
		{"client empty", `{"policy":"api","client":""}`, "client is missing"},
		{"client number", `{"policy":"api","client":7}`, "client must be a string"},
		{"client null", `{"policy":"api","client":null}`, "client must be a string"},
		{"client array", `{"policy":"api","client":["alice"]}`, "client must be a string"},
		{"client object", `{"policy":"api","client":{}}`, "client must be a string"},
		{"client too long", `{"policy":"api","client":"` + strings.Repeat("a", 1025) + `"}`, "client is 1025 bytes long; at most 1024 are possible"},
		{"client too long in bytes", `{"policy":"api","client":"` + strings.Repeat("é", 513) + `"}`, "client is 1026 bytes long"},
		{"client not UTF-8", "{\"policy\":\"api\",\"client\":\"\xff\"}", "invalid UTF-8"},
		{"client a lone high surrogate", `{"policy":"api","client":"\ud800"}`, "the body is not valid JSON: "},
		{"client a lone low surrogate", `{"policy":"api","client":"\udc00x"}`, "the body is not valid JSON: "},
		{"client a bad escape", `{"policy":"api","client":"\x"}`, "the body is not valid JSON: "},

		{"cost null", `{` + valid + `,"cost":null}`, "cost must be a whole number"},
		{"cost string", `{` + valid + `,"cost":"1"}`, "cost must be a whole number"},
		{"cost true", `{` + valid + `,"cost":true}`, "cost must be a whole number"},
		{"cost array", `{` + valid + `,"cost":[]}`, "cost must be a whole number"},
		{"cost negative", `{` + valid + `,"cost":-1}`, "cost -1 must be a whole number from 0 to 1000000000"},
		{"cost fraction", `{` + valid + `,"cost":1.5}`, "cost is 1.5 and must be a whole number"},
		{"cost fraction of zeros", `{` + valid + `,"cost":1.0}`, "cost is 1.0 and must be a whole number"},
		{"cost exponent", `{` + valid + `,"cost":1e3}`, "cost is 1e3 and must be a whole number"},
		{"cost large", `{` + valid + `,"cost":1000000001}`, "cost 1000000001 must be a whole number from 0 to 1000000000"},
		{"cost beyond 64 bits", `{` + valid + `,"cost":18446744073709551617}`, "cost is 18446744073709551617 and must be a whole number from 0 to 1000000000"},
		{"cost NaN", `{` + valid + `,"cost":NaN}`, "the body is not valid JSON: "},
		{"cost with a leading zero", `{` + valid + `,"cost":01}`, "the body is not valid JSON: "},
		{"cost above the limit", `{` + valid + `,"cost":101}`, `cost 101 is above the limit "per-minute", which is 100, and can never be admitted`},
		{"cost above the caller's limit", `{` + valid + `,"cost":2,"limits":{"per-minute":1}}`, "cost 2 is above the limit"},

		{"limits null", `{` + valid + `,"limits":null}`, "limits must be an object"},
		{"limits array", `{` + valid + `,"limits":[100]}`, "limits must be an object"},
		{"limits number", `{` + valid + `,"limits":100}`, "limits must be an object"},
		{"limit string", `{` + valid + `,"limits":{"per-minute":"100"}}`, "limits.per-minute must be a whole number"},
		{"limit null", `{` + valid + `,"limits":{"per-minute":null}}`, "limits.per-minute must be a whole number"},
		{"limit fraction", `{` + valid + `,"limits":{"per-minute":0.5}}`, "limits.per-minute is 0.5 and must be a whole number"},
		{"limit unknown", `{` + valid + `,"limits":{"per-day":5}}`, `policy "api" has no limit "per-day"; GET /v1/policies/api lists them`},
		{"limit 0", `{` + valid + `,"limits":{"per-minute":0}}`, `limits: "per-minute" is 0 and must be a whole number from 1 to 1000000000000`},
		{"limit negative", `{` + valid + `,"limits":{"per-minute":-5}}`, `"per-minute" is -5`},
		{"limit large", `{` + valid + `,"limits":{"per-minute":1000000000001}}`, "1000000000001 and must be a whole number from 1 to 1000000000000"},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := newService(newPolicy("api", fixed("per-hour", 1000, time.Hour), fixed("per-minute", 100, time.Minute)))
			r := s.check(t, test.body)
			requireProblem(t, r, http.StatusBadRequest, test.detail)
			requireUntouched(t, s)

			// In a batch, it is an error that names the check, or a
			// result.
			if _, isObject := strings.CutPrefix(test.body, `{"`); isObject && strings.HasSuffix(test.body, "}") && json.Valid([]byte(test.body)) {
				r := s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[`+test.body+`]}`)
				if r.Code == http.StatusOK {
					require.Len(t, r.Results, 1)
					assert.EqualValues(t, http.StatusBadRequest, r.Results[0].Status)
					assert.Contains(t, r.Results[0].Detail, test.detail)
				} else {
					requireProblem(t, r, http.StatusBadRequest, "")
				}
				requireUntouched(t, s)
			}
		})
	}
}

func TestLongestClientIsAccepted(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 1, time.Minute)))
	for _, client := range []string{strings.Repeat("a", 1024), strings.Repeat("a", 1023) + "b", strings.Repeat("🐢", 256)} {
		r := s.admits(t, fmt.Sprintf(`{"policy":"api","client":%q}`, client))
		assert.Equal(t, client, r.Client)
	}
	// Every byte escaped.
	escaped := strings.Repeat(`\u0061`, 1024)
	s.denies(t, `{"policy":"api","client":"`+escaped+`"}`)
}

func TestSpaceInJSONIsAccepted(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	s.admits(t, " {\r\n\t\"client\" : \"alice\" , \"limits\" : { } , \"cost\" : -0 , \"policy\" : \"\\u0061pi\" } \n")
}

func TestContentType(t *testing.T) {
	t.Parallel()
	const body = `{"policy":"api","client":"alice"}`
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	for _, accepted := range []string{
		"application/json", "application/json; charset=utf-8", `Application/JSON;charset="UTF-8"`, "application/x-www-form-urlencoded",
	} {
		r := s.do(t, http.MethodPost, "/v1/check", body, "Content-Type", accepted)
		assert.Equal(t, http.StatusOK, r.Code, accepted)
	}
	s.admits(t, body) // without one

	before := s.store.operations()
	for _, refused := range []string{
		"text/plain", "application/xml", "application/json; charset=latin1", "multipart/form-data; boundary=x", "application/jsonp", "json", ";", "application/json;;",
	} {
		for _, target := range []string{"/v1/check", "/v1/check/batch"} {
			r := s.do(t, http.MethodPost, target, body, "Content-Type", refused)
			requireProblem(t, r, http.StatusUnsupportedMediaType, "send application/json")
		}
	}
	for _, target := range []string{"/v1/check", "/v1/check/batch", "/v1/settle"} {
		r := s.do(t, http.MethodPost, target, body, "Content-Encoding", "gzip")
		requireProblem(t, r, http.StatusUnsupportedMediaType, `Content-Encoding "gzip" is not possible; send the body as it is`)
	}
	assert.Equal(t, before, s.store.operations())
}

func TestBodyTooLarge(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	server := httptest.NewServer(s.handler)
	defer server.Close()
	for target, limit := range map[string]int{"/v1/check": 64 << 10, "/v1/check/batch": 8 << 20} {
		const check = `{"policy":"api","client":"alice"}`
		fitting := check
		if target == "/v1/check/batch" {
			fitting = `{"checks":[` + check + `]}`
		}
		fitting += strings.Repeat(" ", limit-len(fitting))
		for _, test := range []struct {
			what   string
			body   io.Reader
			status int
		}{
			{"fits, with its length", strings.NewReader(fitting), http.StatusOK},
			{"fits, chunked", io.MultiReader(strings.NewReader(fitting)), http.StatusOK},
			{"too large, with its length", strings.NewReader(fitting + " "), http.StatusRequestEntityTooLarge},
			{"too large, chunked", io.MultiReader(strings.NewReader(fitting + " ")), http.StatusRequestEntityTooLarge},
		} {
			t.Run(target+" "+test.what, func(t *testing.T) {
				before := s.store.operations()
				response, err := server.Client().Post(server.URL+target, "application/json", test.body)
				require.NoError(t, err)
				r := decodeResult(t, response)
				if test.status == http.StatusOK {
					require.Equal(t, http.StatusOK, r.Code, r.Body)
					return
				}
				requireProblem(t, r, test.status, fmt.Sprintf("the body is larger than %d bytes", limit))
				assert.Equal(t, before, s.store.operations())
			})
		}
	}
}

func TestBodyThatBreaksOff(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	r := newRequest(http.MethodPost, "/v1/check", "")
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"policy":"api","client":"alice"}`), iotest.ErrReader(io.ErrUnexpectedEOF)))
	r.ContentLength = -1
	requireProblem(t, s.serve(t, r), http.StatusBadRequest, "the body could not be read: unexpected EOF")
	requireUntouched(t, s)
	s.admits(t, `{"policy":"api","client":"bob"}`) // nothing of that body is left
}

func TestALateBodyTellsNoAddress(t *testing.T) {
	t.Parallel()
	r := newRequest(http.MethodPost, "/v1/check", "")
	r.Body = io.NopCloser(iotest.ErrReader(&net.OpError{Op: "read", Addr: &net.TCPAddr{}, Err: os.ErrDeadlineExceeded}))
	_, err := readBody(r, maxCheckBytes)
	assert.EqualError(t, err, badRequest("the body could not be read: i/o timeout").Error())
}

func TestLargeBodiesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	for range 3 {
		s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[]}`+strings.Repeat(" ", 2*maxKeptBytes))
		r := s.admits(t, `{"policy":"api","client":"alice"}`)
		require.Equal(t, "alice", r.Client)
		requireProblem(t, s.check(t, `{"policy":"api","client":"bo`), http.StatusBadRequest, "the body ends")
	}
}

// decode reads data as the handlers do.
func decode(data []byte, limit int64) (*body, error) {
	return readBody(&http.Request{Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(data)), ContentLength: -1}, limit)
}

// requireExplained asserts that err is a problem with the request.
func requireExplained(t *testing.T, err error) {
	t.Helper()
	var p *problem
	require.ErrorAs(t, err, &p)
	require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, p.Status)
	require.NotEmpty(t, p.Detail)
}

// encode returns the body that asks q.
func encode(t *testing.T, q decide.Check) string {
	t.Helper()
	quote := func(s string) string {
		quoted, err := json.Marshal(s)
		require.NoError(t, err)
		return string(quoted)
	}
	fields := []string{`"policy":` + quote(q.Policy), `"client":` + quote(q.Client), `"cost":` + strconv.FormatInt(q.Cost, 10)}
	if q.Limits != nil {
		var limits []string
		for _, l := range q.Limits {
			limits = append(limits, quote(l.Name)+":"+strconv.FormatInt(l.Value, 10))
		}
		fields = append(fields, `"limits":{`+strings.Join(limits, ",")+`}`)
	}
	return "{" + strings.Join(fields, ",") + "}"
}

// fuzzDecode checks that a body is refused with an explanation, or is JSON and
// decodes to the same again when it has been encoded.
func fuzzDecode[T any](f *testing.F, limit int64, decodeBody func(*body) (T, error), encode func(*testing.T, T) string) {
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := decode(data, limit)
		if err != nil {
			requireExplained(t, err)
			return
		}
		defer b.release()
		decoded, err := decodeBody(b)
		if err != nil {
			requireExplained(t, err)
			return
		}
		require.True(t, json.Valid(data))
		again, err := decode([]byte(encode(t, decoded)), 1<<30)
		require.NoError(t, err)
		defer again.release()
		same, err := decodeBody(again)
		require.NoError(t, err)
		require.Equal(t, decoded, same)
	})
}

func FuzzDecodeCheck(f *testing.F) {
	fuzzDecode(f, maxCheckBytes, (*body).decodeCheck, encode)
}

func FuzzDecodeBatch(f *testing.F) {
	fuzzDecode(f, maxBatchBytes, (*body).decodeBatch, func(t *testing.T, batch batch) string {
		require.LessOrEqual(t, len(batch.checks), decide.MaxBatch)
		var checks []string
		for _, q := range batch.checks {
			checks = append(checks, encode(t, q))
		}
		return `{"checks":[` + strings.Join(checks, ",") + `],"all":` + strconv.FormatBool(batch.all) + `}`
	})
}

// A body means the same behind a space, with which it isn't plain.
func FuzzPlainText(f *testing.F) {
	for _, check := range []string{
		`{"policy":"api","client":"alice"}`, `{"policy":"api","client":"alice","cost":3,"settle":true}`, `{"policy":"","client":""}`,
		`{"policy":"api","client":"alice","cost":0}`, `{"policy":"api","client":"alice","cost":03}`, `{"policy":"api","client":"alice","cost":}`,
		`{"policy":"api","client":"alice","cost":-1}`, `{"policy":"api","client":"alice","cost":1.5}`, `{"policy":"api","client":"alice","cost":999999999999999999}`,
		`{"policy":"api","client":"alice","cost":9223372036854775807}`, `{"policy":"api","client":"alice","cost":9223372036854775808}`,
		`{"policy":"api","client":"alice","settle":false}`, `{"policy":"api","client":"alice","settle":true,"cost":3}`, `{"client":"alice","policy":"api"}`,
		`{"policy":"api","client":"alice","client":"bob"}`, `{"policy":"api","client":"a\"b"}`, `{"policy":"api","client":"zoë"}`, "{\"policy\":\"api\",\"client\":\"\xff\"}",
		"{\"policy\":\"api\",\"client\":\"\x7f\"}", "{\"policy\":\"api\",\"client\":\"\n\"}", `{"policy":"api","client":"alice"`, `{"policy":"api","client":"alice`,
		`{"policy":"api","client":"alice"} `, `{"policy":"api","client":"alice"}}`, `{"policy":"api"}`, `{"policy":"api","client":"alice",}`,
	} {
		f.Add([]byte(check))
		f.Add([]byte(`{"checks":[` + check + `]}`))
		f.Add([]byte(`{"checks":[` + check + `,{"policy":"other","client":"bob","cost":2},` + check + `]}`))
	}
	f.Add([]byte(`{"checks":[{"policy":"api","client":"alice"},]}`))
	f.Add([]byte(`{"checks":[{"policy":"api","client":"alice"}],"all":true}`))
	for _, n := range []int{decide.MaxBatch, decide.MaxBatch + 1} {
		checks := strings.Repeat(`{"policy":"api","client":"alice"},`, n)
		f.Add([]byte(`{"checks":[` + checks + `]}`))
		f.Add([]byte(`{"checks":[` + strings.TrimSuffix(checks, ",") + `]}`))
	}
	key := receipt.NewKey(nil)
	written, _ := key.Append(nil, &receipt.Receipt{Policy: "api", Client: "alice", Cost: 3})
	for _, rest := range []string{"", `,"cost":0`, `,"cost":07`, `,"cost":-1`, `,"cost":`, `,"cost":2,"cost":3`, `,"more":1`} {
		f.Add([]byte(`{"receipt":"` + string(written) + `"` + rest + `}`))
	}
	f.Add([]byte(`{"receipt":"none"}`))
	f.Add([]byte(`{"cost":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		equal(t, data, func(b *body) (decide.Settling, error) { return b.decodeSettlement(key) })
		equal(t, data, (*body).decodeCheck)
		equal(t, data, (*body).decodeBatch)
	})
}

func equal[T any](t *testing.T, data []byte, decodeBody func(*body) (T, error)) {
	t.Helper()
	var decoded [2]T
	var errs [2]error
	for i, before := range []string{"", " "} {
		b, err := decode(append([]byte(before), data...), maxBatchBytes)
		if err != nil {
			return
		}
		decoded[i], errs[i] = decodeBody(b)
	}
	require.Equal(t, errs[0] == nil, errs[1] == nil)
	if errs[0] == nil {
		require.Equal(t, decoded[1], decoded[0])
	}
}

func TestEveryErrorOfTheDecoderIsReadable(t *testing.T) {
	t.Parallel()
	for body, detail := range map[string]string{
		`{"policy":"api","client":"\ud800"}`:        "surrogate",
		`{"policy":"api" "client":"alice"}`:         "','",
		`{"policy":"api","client":"alice","cost":}`: `missing value after object name within "/cost"`,
	} {
		b, err := decode([]byte(body), maxCheckBytes)
		require.NoError(t, err)
		_, err = b.decodeCheck()
		requireExplained(t, err)
		assert.Contains(t, err.Error(), detail)
		assert.NotContains(t, err.Error(), "jsontext")
	}
}
