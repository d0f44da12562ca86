package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"weir/api/client"
	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// Three a minute are allowed. The fourth and all that follow cost no request.
func Example() {
	weir := startWeir(newPolicy("api", fixed("api", 3))) // go run ./cmd/server
	defer weir.Close()

	limits, err := client.New(client.Config{
		URL:      weir.URL,
		Timeout:  patience,
		FailOpen: true, // rather too many requests than none, if weir is down
	})
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close()

	for range 5 {
		answer, err := limits.Check(context.Background(), client.Check{Policy: "api", Client: "alice"})
		if err != nil {
			log.Print(err) // there is an answer all the same
		}
		if answer.Allowed {
			fmt.Println("allowed,", answer.Limits[0].Remaining, "remain")
		} else {
			fmt.Println("denied, try again in", answer.RetryAfter.Round(time.Minute))
		}
	}
	fmt.Println(len(weir.asked()), "requests")
	// Output:
	// allowed, 2 remain
	// allowed, 1 remain
	// allowed, 0 remain
	// denied, try again in 1m0s
	// denied, try again in 1m0s
	// 4 requests
}

func ExampleClient_CheckMany() {
	weir := startWeir(newPolicy("mail", fixed("mail", 2)))
	defer weir.Close()
	limits, err := client.New(client.Config{URL: weir.URL, Timeout: patience})
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close()

	for _, result := range limits.CheckMany(context.Background(), []client.Check{
		{Policy: "mail", Client: "alice"},
		{Policy: "mail", Client: "alice", Cost: 2},
		{Policy: "post", Client: "alice"},
	}) {
		fmt.Println(result.Allowed, result.Err)
	}
	// Output:
	// true <nil>
	// false <nil>
	// false client: weir answers 404 Not Found: there is no policy "post"; GET /v1/policies lists them
}

func ExampleMiddleware() {
	weir := startWeir(newPolicy("api", fixed("api", 1)))
	defer weir.Close()
	limits, err := client.New(client.Config{URL: weir.URL, Timeout: patience})
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close()

	limited := client.Middleware(limits, func(r *http.Request) client.Check {
		return client.Check{Policy: "api", Client: r.Header.Get("X-Api-Key")}
	})
	handler := limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "hello")
	}))

	for range 2 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Api-Key", "alice")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "per-minute";r=0;t=60
	// 429 "per-minute";r=0;t=60
}

// An inProcess limiter needs no service, as long as one process is all there
// is.
type inProcess struct{ limiter *subwindow.Limiter }

func (l inProcess) Check(ctx context.Context, q client.Check) (client.Answer, error) {
	d, err := l.limiter.Take(ctx, counters.Request{Client: q.Client, Cost: max(1, q.Cost), Limit: 1, Now: time.Now()})
	return client.Answer{Allowed: d.Allowed, RetryAfter: d.RetryAfter}, err
}

// A middleware asks any Limiter, such as one in the process.
func ExampleLimiter() {
	day, err := subwindow.NewFixedWindow(24 * time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := subwindow.New(memory.New(nil), day, counters.Options{Policy: "api", Limit: "per-day"})
	if err != nil {
		log.Fatal(err)
	}
	limited := client.Middleware(inProcess{limiter}, func(r *http.Request) client.Check {
		return client.Check{Client: r.Host}
	})
	handler := limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://alice.example/", nil))
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 429
}

// An answer of a language model costs what it reads and writes, which is known only when
// it has ended: as much is reserved as it may be at most, and what wasn't used is given
// back at once.
func ExampleClient_Settle() {
	weir := startWeir(newPolicy("llm", fixed("llm", 10_000)))
	defer weir.Close()
	limits, err := client.New(client.Config{URL: weir.URL, Timeout: patience})
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close()

	const input, maxTokens = 800, 4000
	answer, err := limits.Check(context.Background(), client.Check{Policy: "llm", Client: "team-a", Cost: input + maxTokens, Settle: true})
	if err != nil || !answer.Allowed {
		log.Fatal("try again in ", answer.RetryAfter, err)
	}
	fmt.Println(answer.Limits[0].Remaining, "remain while it streams")
	written := int64(0)
	for range 130 { // chunks of the stream
		written += 8
	}
	settled, err := limits.Settle(context.Background(), answer.Receipt, input+written)
	if err != nil {
		log.Print(err) // it is settled later
	}
	fmt.Println(settled.Limits[0].Refunded, "given back,", settled.Limits[0].Remaining, "remain")
	// Output:
	// 5200 remain while it streams
	// 2960 given back, 8160 remain
}

// At most 8 webhooks are sent to a receiver at once, and 100 a minute.
func ExampleClient_Hold() {
	inFlight := places("webhooks", 8, 30*time.Second)
	weir := startWeir(newPolicy("webhooks", fixed("webhooks", 100), inFlight))
	defer weir.Close()
	limits, err := client.New(client.Config{URL: weir.URL, Timeout: patience})
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close()

	send := func(receiver string) error {
		lease, err := limits.Hold(context.Background(), client.Check{Policy: "webhooks", Client: receiver})
		if err != nil { // a *client.DeniedError says when to try again
			return err
		}
		defer lease.Release() // whatever becomes of it; and if this process dies, in 30 s
		// http.Post(receiver, ...)
		return nil
	}
	for range 20 {
		if err := send("https://shop.example/hook"); err != nil {
			fmt.Println(err)
		}
	}
	answer, err := limits.Peek(context.Background(), "webhooks", "https://shop.example/hook")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Limits[0].Remaining, "more this minute,", answer.Limits[1].Remaining, "at once")
	// Output:
	// 80 more this minute, 8 at once
}
