package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/racetest"
)

// onLoopback serves by the loop until the test ends, and returns at which address.
func (s *service) onLoopback(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv, served := plainWithLoops(s), make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-served
	})
	return l.Addr().String()
}

// What a client sees doesn't say whether its requests were decided with those of others.
func TestTheLoopAnswersAsOthers(t *testing.T) {
	t.Parallel()
	var visits []visit
	for i, data := range requestCorpus() {
		visits = append(visits, visit{data: data, parts: uint64(i % 5 / 4 * i), token: i%3 == 0})
	}
	for seed := range uint64(100) {
		v := mixture(seed)
		v.parts = 0
		visits = append(visits, v)
	}
	rand.Shuffle(len(visits), func(i, j int) { visits[i], visits[j] = visits[j], visits[i] })
	for _, v := range visits[:racetest.Some(uint64(len(visits)))] {
		v.agreeOnLoopback(t, false)
		v.agreeOnLoopback(t, true)
	}
}

// Checks of one client that come at once are decided as one after the other would be.
func TestChecksTogetherAdmitTheLimit(t *testing.T) {
	t.Parallel()
	const limit, callers, each = 100, 20, 20
	s := way{many: true}.newService(newPolicy("api", fixed("per-minute", limit, time.Minute)), newPolicy("tokens", token("tokens", limit, time.Minute, limit)))
	address := s.onLoopback(t)
	for _, policy := range []string{"api", "tokens"} {
		statuses := make(chan int, callers*each)
		allAtOnce(callers, func(int) {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			for range each {
				body := fmt.Sprintf(`{"policy":%q,"client":"alice"}`, policy)
				r, err := (&http.Client{Transport: transport}).Post("http://"+address+"/v1/check", "application/json", strings.NewReader(body))
				if assert.NoError(t, err) {
					_ = r.Body.Close()
					statuses <- r.StatusCode
				}
			}
		})
		close(statuses)
		counts := make(map[int]int)
		for status := range statuses {
			counts[status]++
		}
		assert.Equal(t, map[int]int{http.StatusOK: limit, http.StatusTooManyRequests: callers*each - limit}, counts, policy)
	}
}

// A panic fails its own check, whoever is asked about together with it.
func TestAPanicFailsItsOwnCheckOfTheLoop(t *testing.T) {
	t.Parallel()
	buggy := fixed("buggy", 1, time.Minute)
	buggy.Limiter = panickingLimiter{}
	s := way{many: true}.newService(newPolicy("buggy", buggy), newPolicy("api", fixed("per-minute", 100, time.Minute)))
	address := s.onLoopback(t)
	allAtOnce(40, func(i int) {
		c, err := net.Dial("tcp", address)
		must(err)
		defer c.Close()
		answers := bufio.NewReader(c)
		for round := range 10 {
			of, want := "api", http.StatusOK
			if (i+round)%3 == 0 {
				of, want = "buggy", http.StatusInternalServerError
			}
			_, err = io.WriteString(c, checkOf(of, fmt.Sprint("client-", i)))
			must(err)
			r, err := http.ReadResponse(answers, nil)
			if assert.NoError(t, err) {
				_, _ = io.Copy(io.Discard, r.Body)
				assert.Equal(t, want, r.StatusCode)
			}
		}
	})
	assert.Contains(t, s.log.String(), `level=ERROR msg=panic path=/v1/check error="a bug" stack=`)
}

// A caller has a connection of its own.
type caller struct {
	net.Conn
	answers *bufio.Reader
}

func callerAt(address string) caller {
	c, err := net.Dial("tcp", address)
	must(err)
	must(c.SetDeadline(time.Now().Add(time.Minute)))
	return caller{c, bufio.NewReader(c)}
}

func (c caller) post(path, body string) (status int, text string) {
	_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	must(err)
	r, err := http.ReadResponse(c.answers, nil)
	must(err)
	b, err := io.ReadAll(r.Body)
	must(err)
	return r.StatusCode, string(b)
}

// receiptIn returns the receipt in the answer to a check.
func receiptIn(text string) string {
	_, rest, _ := strings.Cut(text, `"receipt":"`)
	r, _, _ := strings.Cut(rest, `"`)
	return r
}

// Settlements that come at once, beside checks, are each done once, whichever instance is
// asked. Who is told that a place is released finds it free elsewhere.
func TestSettlementsTogether(t *testing.T) {
	t.Parallel()
	on, now := newMemcached(t), &clock{time: epoch}
	p := newPolicy("llm", sliding("tokens", 1000, time.Minute, 6, "weighted"), token("bucket", 1000, time.Minute, 0))
	held := newPolicy("held", places("in-flight", 8, time.Minute))
	var instances []*service
	var addresses []string
	for range 2 {
		s := way{many: true}.newServiceOn(on, func(c *Config) { c.Now = now.now }, p, held)
		instances, addresses = append(instances, s), append(addresses, s.onLoopback(t))
	}
	const clients, each, times = 4, 10, 3
	receipts := make([]string, clients*each)
	for round := range 5 {
		client := func(i int) string { return fmt.Sprint("client-", round, "-", i%clients) }
		for i := range receipts {
			receipts[i] = instances[i%2].check(t, fmt.Sprintf(`{"policy":"llm","client":%q,"cost":5,"settle":true}`, client(i))).Receipt
		}
		var place []string
		for range 8 {
			place = append(place, instances[0].check(t, fmt.Sprintf(`{"policy":"held","client":%q,"settle":true}`, client(0))).Receipt)
		}
		var first [clients * each]atomic.Int64
		allAtOnce(times*len(receipts)+len(place)+20, func(i int) {
			c := callerAt(addresses[i%2])
			defer c.Close()
			switch {
			case i < times*len(receipts):
				n := i / times
				status, text := c.post("/v1/settle", fmt.Sprintf(`{"receipt":%q,"cost":2}`, receipts[n]))
				assert.Equal(t, http.StatusOK, status, text)
				if strings.Contains(text, `"already":false`) {
					first[n].Add(1)
				}
			case i < times*len(receipts)+len(place):
				n := i - times*len(receipts)
				status, text := c.post("/v1/settle", fmt.Sprintf(`{"receipt":%q}`, place[n]))
				assert.Equal(t, http.StatusOK, status, text)
				elsewhere := callerAt(addresses[(i+1)%2])
				defer elsewhere.Close()
				status, text = elsewhere.post("/v1/check", fmt.Sprintf(`{"policy":"held","client":%q,"settle":true}`, client(0)))
				assert.Equal(t, http.StatusOK, status, text)
			case i%2 == 0:
				status, text := c.post("/v1/settle", `{"receipt":"`+receipts[0][:20]+`"}`)
				assert.Equal(t, http.StatusBadRequest, status, text)
			default:
				status, text := c.post("/v1/check", fmt.Sprintf(`{"policy":"llm","client":%q,"cost":0}`, client(i)))
				assert.Equal(t, http.StatusOK, status, text)
			}
		})
		for n := range receipts {
			assert.EqualValues(t, 1, first[n].Load(), "receipt %d is settled once", n)
		}
		require.EventuallyWithT(t, func(t *assert.CollectT) { // a store that is too slow for one is told again
			for _, s := range instances {
				s.tells()
			}
			for i := range clients {
				for _, l := range instances[i%2].check(t, fmt.Sprintf(`{"policy":"llm","client":%q,"cost":0}`, client(i))).Limits {
					assert.EqualValues(t, 1000-2*each, l.Remaining, "%s has by %s what it didn't use back", client(i), l.Name)
				}
			}
		}, time.Minute, time.Millisecond)
	}
}

// Who is told that a place is released finds it free on another instance, though others ask
// about its client all the time, and the store is far.
func TestAReleasedPlaceOfABusyClientIsFreeElsewhere(t *testing.T) {
	t.Parallel()
	server, now := memcachedtest.Start(t), &clock{time: epoch}
	far, err := memcached.New(memcached.Config{Servers: []string{server.Far(4 * time.Millisecond)}, Timeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, far.Close()) })
	near := storeOn(t, server)
	instance := func(on telemetry.Store) *service {
		return way{many: true}.newServiceOn(on, func(c *Config) { c.Now = now.now }, newPolicy("held", places("in-flight", 5, time.Minute)))
	}
	address := instance(far).onLoopback(t)
	c := callerAt(address)
	defer c.Close()
	status, text := c.post("/v1/check", `{"policy":"held","client":"a","cost":4,"settle":true}`)
	require.Equal(t, http.StatusOK, status, text)
	var over atomic.Bool
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			c := callerAt(address)
			defer c.Close()
			for !over.Load() {
				status, text := c.post("/v1/check", `{"policy":"held","client":"a","cost":3,"settle":true}`)
				assert.Equal(t, http.StatusTooManyRequests, status, text)
			}
		})
	}
	defer others.Wait()
	defer over.Store(true)
	for released := 0; released < 30; {
		status, text := c.post("/v1/check", `{"policy":"held","client":"a","settle":true}`)
		if status != http.StatusOK { // others race for the state
			continue
		}
		status, text = c.post("/v1/settle", fmt.Sprintf(`{"receipt":%q}`, receiptIn(text)))
		require.Equal(t, http.StatusOK, status, text)
		elsewhere := instance(near)
		r := elsewhere.check(t, `{"policy":"held","client":"a","settle":true}`)
		require.True(t, r.Allowed, "after %d releases", released)
		require.Equal(t, http.StatusOK, elsewhere.release(t, r.Receipt).Code)
		released++
	}
}

// panickingCharge is a limiter that can't be charged.
type panickingCharge struct{ counters.Limiter }

func (panickingCharge) Charge(context.Context, counters.Request) error { panic("a bug") }

// A panic fails its own settlement, wherever it comes from.
func TestAPanicFailsItsOwnSettlement(t *testing.T) {
	t.Parallel()
	for _, many := range []bool{true, false} {
		p := newPolicy("llm", fixed("a", 100, time.Minute), fixed("b", 100, time.Hour))
		s := way{many: many}.newService(p, newPolicy("held", places("in-flight", 100, time.Minute)))
		for i := range p.Limits {
			p.Limits[i].Limiter = panickingCharge{p.Limits[i].Limiter}
		}
		c := callerAt(s.onLoopback(t))
		defer c.Close()
		reserve := func(policy string) string {
			status, text := c.post("/v1/check", fmt.Sprintf(`{"policy":%q,"client":"a","settle":true}`, policy))
			require.Equal(t, http.StatusOK, status, text)
			return receiptIn(text)
		}
		requireFailed := func(body string) {
			t.Helper()
			status, text := c.post("/v1/settle/batch", `{"settlements":[`+body+`]}`)
			require.Equal(t, http.StatusOK, status, text)
			require.Equal(t, strings.Count(body, "receipt"), strings.Count(text, `"status":500`), text)
		}
		for range 10 {
			requireFailed(fmt.Sprintf(`{"receipt":%q,"cost":3}`, reserve("llm"))) // in two limits
		}
		one, two := reserve("held"), reserve("held")
		s.store.onCall(func(_ context.Context, operation, key string) error {
			if operation == "swap" && strings.Contains(key, ":concurrency:") {
				panic("a bug")
			}
			return nil
		})
		requireFailed(fmt.Sprintf(`{"receipt":%q}`, one))
		s.store.onCall(func(_ context.Context, operation, _ string) error {
			if operation == "swap" {
				panic("a bug")
			}
			return nil
		})
		requireFailed(fmt.Sprintf(`{"receipt":%q},{"receipt":%q}`, two, two))
		s.store.onCall(nil)
	}
}
