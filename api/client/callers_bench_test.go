package client_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"weir/api/client"
)

// admits answers batches of checks at once: each check is admitted.
type admits struct{}

func (admits) RoundTrip(r *http.Request) (*http.Response, error) {
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return nil, err
	}
	const result = `{"status":200,"allowed":true,"policy":"api","client":"client-00000001","retry_after":0,"wait":0,"degraded":false,"shadow":false,` +
		`"limits":[{"name":"limit","algorithm":"fixed_window","allowed":true,"limit":1000000000,"remaining":999999900,"reset_after":41.2,"retry_after":0}]}`
	checks := bytes.Count(body, []byte(`"policy"`))
	answer := append(make([]byte, 0, (checks+1)*len(result)), `{"results":[`...)
	for range checks {
		answer = append(append(answer, result...), ',')
	}
	answer = append(bytes.TrimSuffix(answer, []byte{','}), "]}\n"...)
	return &http.Response{StatusCode: http.StatusOK, ContentLength: int64(len(answer)), Body: io.NopCloser(bytes.NewReader(answer))}, nil
}

// BenchmarkCallers is what a check takes of the processor of its callers, without HTTP.
func BenchmarkCallers(b *testing.B) {
	for _, callers := range []int{1, 256, 2048} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			c, err := client.New(client.Config{URL: "http://weir", Transport: admits{}, Timeout: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			var all sync.WaitGroup
			b.ResetTimer()
			for i := range callers {
				all.Go(func() {
					ctx, cancel := context.WithCancel(context.Background()) // as a server's request has
					defer cancel()
					for n := i; n < b.N; n += callers {
						if a, err := c.Check(ctx, client.Check{Policy: "api", Client: "client-00000001"}); err != nil || !a.Allowed {
							b.Errorf("%+v, %v", a, err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}
