package api

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
)

// served returns the document as the service serves it.
func served(t *testing.T) *openapi3.T {
	t.Helper()
	r := newService().do(t, http.MethodGet, "/openapi.yaml", "")
	require.Equal(t, http.StatusOK, r.Code)
	require.Equal(t, "application/yaml", r.Header.Get("Content-Type"))
	doc, err := openapi3.NewLoader().LoadFromData([]byte(r.Body))
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	return doc
}

func TestOpenAPIHasEveryRouteAndNoOther(t *testing.T) {
	t.Parallel()
	doc := served(t)
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
	var documented, routed []string
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	s := newServiceWith(func(cfg *Config) {
		// As with -envoy-config.
		cfg.Handlers = map[string]http.Handler{"POST /json": http.NotFoundHandler(), "GET /healthcheck": http.NotFoundHandler(), "HEAD /healthcheck": http.NotFoundHandler(), "GET /rlconfig": http.NotFoundHandler()}
	})
	for _, route := range s.echo.Routes() {
		if strings.HasSuffix(route.Path, "/clients/*") { // a client whose slash isn't escaped
			continue
		}
		var segments []string
		for segment := range strings.SplitSeq(route.Path, "/") {
			if name, ok := strings.CutPrefix(segment, ":"); ok {
				segment = "{" + name + "}"
			}
			if segment == "*" {
				segment = "{path}"
			}
			segments = append(segments, segment)
		}
		path := strings.Join(segments, "/")
		if route.Method != echo.RouteNotFound {
			routed = append(routed, route.Method+" "+path)
			continue
		}
		for _, method := range methods { // RouteNotFound takes any
			routed = append(routed, method+" "+path)
		}
	}
	slices.Sort(documented)
	slices.Sort(routed)
	assert.Equal(t, routed, documented)
}

// A contract checks requests and answers against the document.
type contract struct {
	router routers.Router
	seen   map[string]bool // operation and status
}

// request returns what the document says of r, or an error if r is not one that
// it describes.
func (c *contract) request(t *testing.T, r *http.Request, body string) (*openapi3filter.RequestValidationInput, error) {
	route, params, err := c.router.FindRoute(r)
	require.NoError(t, err)
	r = r.Clone(t.Context())
	r.Body = io.NopCloser(strings.NewReader(body))
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
			IncludeResponseStatus: true,
			MultiError:            true,
		},
	}
	return input, openapi3filter.ValidateRequest(t.Context(), input)
}

func (c *contract) response(t *testing.T, input *openapi3filter.RequestValidationInput, answer result) error {
	c.seen[input.Route.Method+" "+input.Route.Path+" "+strconv.Itoa(answer.Code)] = true
	response := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: answer.Code, Header: answer.Header, Options: input.Options,
	}
	response.SetBodyBytes([]byte(answer.Body))
	return openapi3filter.ValidateResponse(t.Context(), response)
}

func TestServiceKeepsTheContract(t *testing.T) {
	t.Parallel()
	doc := served(t)
	router, err := legacy.NewRouter(doc)
	require.NoError(t, err)
	c := &contract{router: router, seen: make(map[string]bool)}

	buggy := fixed("buggy", 1, time.Minute)
	buggy.Limiter = panickingLimiter{}
	closed := newPolicy("closed", fixed("per-minute", 2, time.Minute), fixed("half", 2, 500*time.Millisecond))
	closed.OnStoreError = policy.StoreErrorDeny
	trial := newPolicy("trial", sliding("ten", 1, 10*time.Second, 10, "strict"))
	trial.Shadow, trial.Description = true, "a trial"
	nginx := newPolicy("nginx", fixed("per-minute", 1, time.Minute))
	nginx.AuthDenyStatus = http.StatusForbidden
	keyed := newPolicy("keyed", fixed("per-minute", 1, time.Minute))
	keyed.Identify = []policy.Identifier{{Header: "X-Api-Key"}}
	optional := newPolicy("optional", fixed("per-minute", 1, time.Minute))
	optional.Identify, optional.OnMissingClient = keyed.Identify, policy.MissingClientAllow
	optional.Clients = clients(map[string]policy.Terms{"abuser": {Blocked: true}})
	api := newPolicy("api", fixed("per-minute", 3, time.Minute), sliding("ten", 5, 10*time.Second, 10, "weighted"))
	api.Clients = clients(map[string]policy.Terms{"probe": {Exempt: true}, "abuser": {Blocked: true}})
	queue := newPolicy("queue", leaky("queue", 3, time.Second, 5), token("tokens", 3, time.Second, 0), slidingLog("log", 5, time.Minute))
	queue.Hold = true
	healthy := true
	s := newServiceWith(func(cfg *Config) {
		cfg.Tokens = []Token{{Secret: "token"}, {Secret: "gateway", ChecksOnly: true}}
		cfg.Health = func() []counters.ServerStatus {
			if healthy {
				return []counters.ServerStatus{{Server: "a:11211"}, {Server: "b:11211", Err: counters.ErrTimeout}}
			}
			return []counters.ServerStatus{{Server: "b:11211", Err: counters.ErrTimeout}}
		}
	}, api, closed, trial, nginx, keyed, optional, queue, newPolicy("buggy", buggy), newPolicy("held", places("places", 1, time.Minute)))

	const form = "application/x-www-form-urlencoded"
	type step struct {
		what, method, target, body string
		status                     int
		undescribed                bool // the request isn't one that the document allows
		headers                    []string
	}
	run := func(steps []step) {
		for _, step := range steps {
			t.Run(step.what, func(t *testing.T) {
				headers := append([]string{"Authorization", "Bearer token"}, step.headers...)
				if step.body != "" {
					headers = append([]string{"Content-Type", "application/json"}, headers...)
				}
				r := newRequest(step.method, step.target, step.body, headers...)
				input, err := c.request(t, r, step.body)
				if step.undescribed {
					assert.Error(t, err, "the document would have said that this is wrong")
				} else {
					assert.NoError(t, err)
				}
				answer := s.serve(t, r)
				require.Equal(t, step.status, answer.Code, answer.Body)
				if step.method == http.MethodHead {
					answer.Body = "" // net/http drops it
					return
				}
				assert.NoError(t, c.response(t, input, answer), answer.Body)
			})
		}
	}
	check := func(what, body string, status int) step {
		return step{what: what, method: http.MethodPost, target: "/v1/check", body: body, status: status}
	}
	wrong := func(what, body string) step {
		return step{what: what, method: http.MethodPost, target: "/v1/check", body: body, status: http.StatusBadRequest, undescribed: true}
	}
	get := func(target string, status int) step {
		return step{what: target, method: http.MethodGet, target: target, status: status}
	}
	run([]step{
		check("buckets", `{"policy":"queue","client":"c","cost":2}`, 200),
		check("an answer that is held", `{"policy":"queue","client":"c"}`, 200),
		check("buckets deny", `{"policy":"queue","client":"c","cost":3}`, 429),
		check("cost above the burst", `{"policy":"queue","client":"c","cost":6}`, 400),
		check("places", `{"policy":"held","client":"c","settle":true}`, 200),
		check("admitted", `{"policy":"api","client":"alice"}`, 200),
		check("admitted with all fields", `{"policy":"api","client":"alice","cost":2,"limits":{"per-minute":500}}`, 200),
		check("cost 0", `{"policy":"api","client":"alice","cost":0}`, 200),
		check("denied", `{"policy":"api","client":"alice"}`, 429),
		check("exempt", `{"policy":"api","client":"probe"}`, 200),
		check("blocked", `{"policy":"api","client":"abuser"}`, 429),
		check("shadow", `{"policy":"trial","client":"alice"}`, 200),
		check("shadow, would deny", `{"policy":"trial","client":"alice"}`, 200),
		check("unknown policy", `{"policy":"none","client":"alice"}`, 404),
		check("cost above the limit", `{"policy":"api","client":"alice","cost":4}`, 400),
		check("unknown limit", `{"policy":"api","client":"alice","limits":{"none":4}}`, 400),
		check("panic", `{"policy":"buggy","client":"alice"}`, 500),
		wrong("truncated", `{"policy":"api"`),
		wrong("no client", `{"policy":"api"}`),
		wrong("no policy", `{"client":"alice"}`),
		wrong("empty client", `{"policy":"api","client":""}`),
		wrong("long client", `{"policy":"api","client":"`+strings.Repeat("a", 1025)+`"}`),
		wrong("unknown field", `{"policy":"api","client":"alice","x":1}`),
		wrong("cost negative", `{"policy":"api","client":"alice","cost":-1}`),
		wrong("cost fraction", `{"policy":"api","client":"alice","cost":1.5}`),
		wrong("cost large", `{"policy":"api","client":"alice","cost":1000000001}`),
		wrong("limit 0", `{"policy":"api","client":"alice","limits":{"per-minute":0}}`),
		wrong("limit large", `{"policy":"api","client":"alice","limits":{"per-minute":1000000000001}}`),
		{what: "curl's type", method: http.MethodPost, target: "/v1/check", body: `{"policy":"api","client":"bob"}`, status: 200,
			undescribed: true, headers: []string{"Content-Type", form}},
		{what: "wrong type", method: http.MethodPost, target: "/v1/check", body: `{"policy":"api","client":"bob"}`, status: 415,
			undescribed: true, headers: []string{"Content-Type", "text/plain"}},
		check("too large", `{"policy":"api","client":"alice"}`+strings.Repeat(" ", 64<<10), 413),
		{what: "no token", method: http.MethodPost, target: "/v1/check", body: `{"policy":"api","client":"bob"}`, status: 401,
			headers: []string{"Authorization", "Bearer wrong"}},

		{what: "batch", method: http.MethodPost, target: "/v1/check/batch", status: 200,
			body: `{"checks":[{"policy":"api","client":"carol"},{"policy":"api","client":"alice"},{"policy":"none","client":"alice"},{"policy":"buggy","client":"alice"}]}`},
		{what: "all", method: http.MethodPost, target: "/v1/check/batch", status: 200,
			body: `{"all":true,"checks":[{"policy":"api","client":"dave"},{"policy":"queue","client":"dave"},{"policy":"api","client":"probe"}]}`},
		{what: "none", method: http.MethodPost, target: "/v1/check/batch", status: 429,
			body: `{"all":true,"checks":[{"policy":"api","client":"dave"},{"policy":"queue","client":"dave","cost":3}]}`},
		{what: "none because of a blocked one", method: http.MethodPost, target: "/v1/check/batch", status: 429,
			body: `{"all":true,"checks":[{"policy":"api","client":"dave"},{"policy":"api","client":"abuser"}]}`},
		{what: "all with an unknown policy", method: http.MethodPost, target: "/v1/check/batch", status: 404,
			body: `{"all":true,"checks":[{"policy":"api","client":"dave"},{"policy":"none","client":"dave"}]}`},
		{what: "empty batch", method: http.MethodPost, target: "/v1/check/batch", status: 200, body: `{"checks":[]}`},
		{what: "batch without checks", method: http.MethodPost, target: "/v1/check/batch", status: 400, body: `{}`, undescribed: true},
		{what: "batch too long", method: http.MethodPost, target: "/v1/check/batch", status: 400, undescribed: true,
			body: `{"checks":[` + strings.Repeat(`{"policy":"api","client":"a"},`, 1000) + `{"policy":"api","client":"a"}]}`},
		{what: "batch of a wrong type", method: http.MethodPost, target: "/v1/check/batch", status: 415, body: `{"checks":[]}`,
			undescribed: true, headers: []string{"Content-Type", "text/plain"}},
		{what: "batch too large", method: http.MethodPost, target: "/v1/check/batch", status: 413, body: `{"checks":[]}` + strings.Repeat(" ", 8<<20)},

		get("/v1/policies", 200), get("/v1/policies/trial", 200), get("/v1/policies/none", 404),
		get("/v1/policies/api/top", 200), get("/v1/policies/api/top?by=allowed&n=1", 200), get("/v1/policies/none/top", 404),
		{what: "top by nothing", method: http.MethodGet, target: "/v1/policies/api/top?by=", status: 400, undescribed: true},
		{what: "top of too many", method: http.MethodGet, target: "/v1/policies/api/top?n=101", status: 400, undescribed: true},
		get("/v1/policies/api/clients/alice", 200), get("/v1/policies/api/clients/abuser", 200), get("/v1/policies/none/clients/alice", 404),
		{what: "peek long", method: http.MethodGet, target: "/v1/policies/api/clients/" + strings.Repeat("a", 1025), status: 400, undescribed: true},
		{what: "reset", method: http.MethodDelete, target: "/v1/policies/api/clients/alice", status: 204},
		{what: "reset unknown", method: http.MethodDelete, target: "/v1/policies/none/clients/alice", status: 404},

		{what: "block", method: http.MethodPut, target: "/v1/policies/api/overrides/erin", status: 200, body: `{"blocked":true,"for":"10m","reason":"INC-77"}`},
		{what: "other limits", method: http.MethodPut, target: "/v1/policies/api/overrides/10.0.0.0%2F8", status: 200, body: `{"limits":{"per-minute":7},"for":"1h"}`},
		{what: "neither", method: http.MethodPut, target: "/v1/policies/api/overrides/erin", status: 400, body: `{"for":"10m"}`},
		{what: "override of an unknown policy", method: http.MethodPut, target: "/v1/policies/none/overrides/erin", status: 404, body: `{"blocked":true,"for":"10m"}`},
		check("blocked for a time", `{"policy":"api","client":"erin"}`, 429),
		get("/v1/policies/api/overrides", 200), get("/v1/policies/none/overrides", 404),
		get("/v1/policies/api/overrides/10.0.0.0%2F8", 200), get("/v1/policies/api/overrides/frank", 404), get("/v1/policies/api/overrides/a*b", 400),
		{what: "an override that has changed", method: http.MethodDelete, target: "/v1/policies/api/overrides/erin", status: 412, headers: []string{"If-Match", `"7"`}},
		{what: "end", method: http.MethodDelete, target: "/v1/policies/api/overrides/erin", status: 204},
		{what: "end again", method: http.MethodDelete, target: "/v1/policies/api/overrides/erin", status: 404},
		get("/v1/policies/api/clients/alice/state", 200), get("/v1/policies/api/clients/abuser/state", 200), get("/v1/policies/queue/clients/c/state", 200),
		get("/v1/policies/none/clients/c/state", 404), get("/v1/policies/api/history", 200), get("/v1/policies/api/history?seconds=1", 200),
		{what: "too long ago", method: http.MethodGet, target: "/v1/policies/api/history?seconds=301", status: 400, undescribed: true},
		get("/v1/policies/none/history", 404), get("/v1/status", 200),
		get("/v1/look?get=/v1/status&get=/v1/policies/none", 200), {what: "no look", method: http.MethodGet, target: "/v1/look", status: 400, undescribed: true},
		get("/v1/audit", 200), get("/v1/audit?n=1", 200), {what: "too many changes", method: http.MethodGet, target: "/v1/audit?n=1001", status: 400, undescribed: true},
		{what: "checks only", method: http.MethodGet, target: "/v1/audit", status: 403, headers: []string{"Authorization", "Bearer gateway"}},

		get("/v1/auth/nginx", 200), get("/v1/auth/nginx", 403), get("/v1/auth/none", 404), get("/v1/auth/buggy", 500), get("/v1/auth/keyed", 400), get("/v1/auth/optional", 200),
		{what: "blocked", method: http.MethodGet, target: "/v1/auth/optional", status: 429, headers: []string{"X-Api-Key", "abuser"}},
		{what: "sub-path", method: http.MethodPut, target: "/v1/auth/api/orders", status: 200},
		{what: "head", method: http.MethodHead, target: "/v1/auth/api", status: 200},

		get("/healthz", 200), get("/readyz", 200), get("/metrics", 200), get("/openapi.yaml", 200),
		{what: "head", method: http.MethodHead, target: "/healthz", status: 200},
	})

	s.store.failWith(counters.ErrTimeout)
	healthy = false
	run([]step{
		check("degraded", `{"policy":"api","client":"alice"}`, 200),
		check("refused", `{"policy":"closed","client":"alice"}`, 503),
		{what: "refused in a batch", method: http.MethodPost, target: "/v1/check/batch", status: 200, body: `{"checks":[{"policy":"closed","client":"alice"}]}`},
		{what: "all refused", method: http.MethodPost, target: "/v1/check/batch", status: 503, body: `{"all":true,"checks":[{"policy":"closed","client":"alice"}]}`},
		get("/v1/policies/closed/clients/alice", 503), get("/v1/policies/closed/clients/alice/state", 503), get("/v1/policies/api/clients/alice/state", 503),
		get("/v1/status", 200),
		{what: "reset later", method: http.MethodDelete, target: "/v1/policies/api/clients/alice", status: 202},
		get("/v1/auth/closed", 429),
		get("/readyz", 503),
	})

	// Each answer of a check that the document has was seen.
	for path, item := range doc.Paths.Map() {
		if !strings.HasPrefix(path, "/v1/check") {
			continue
		}
		for method, operation := range item.Operations() {
			for code := range operation.Responses.Map() {
				if path == "/v1/check/batch" && (code == "401" || code == "500") {
					continue // middleware's, the same as of a check
				}
				name := method + " " + path + " " + code
				assert.True(t, c.seen[name], name)
			}
		}
	}
}

// The contract test is of no use if it accepts what is wrong.
func TestContractRefusesWrongAnswers(t *testing.T) {
	t.Parallel()
	router, err := legacy.NewRouter(served(t))
	require.NoError(t, err)
	c := &contract{router: router, seen: make(map[string]bool)}
	const body = `{"policy":"api","client":"alice"}`
	input, err := c.request(t, newRequest(http.MethodPost, "/v1/check", body, "Content-Type", "application/json"), body)
	require.NoError(t, err)
	right := newService(newPolicy("api", fixed("per-minute", 3, time.Minute))).check(t, body)
	require.NoError(t, c.response(t, input, right))

	for what, change := range map[string]func(*result){
		"unknown status":  func(r *result) { r.Code = http.StatusTeapot },
		"unknown field":   func(r *result) { r.Body = strings.Replace(r.Body, `"wait"`, `"weight"`, 1) },
		"wrong type":      func(r *result) { r.Body = strings.Replace(r.Body, `"remaining":2`, `"remaining":2.5`, 1) },
		"wrong algorithm": func(r *result) { r.Body = strings.Replace(r.Body, "fixed_window", "guess", 1) },
		"wrong header":    func(r *result) { r.Header.Set("RateLimit", `per-minute;r=2`) },
		"wrong media":     func(r *result) { r.Header.Set("Content-Type", "text/html") },
	} {
		wrong := right
		wrong.Header = right.Header.Clone()
		change(&wrong)
		assert.Error(t, c.response(t, input, wrong), what)
	}
}
