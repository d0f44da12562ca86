package loadgen

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// CheckPath is that of a check.
	CheckPath = "/v1/check"
	// BatchPath is that of a batch of checks.
	BatchPath   = "/v1/check/batch"
	metricsPath = "/metrics"
)

// A Reply is an HTTP response without what net/http adds by itself.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// CaptureReply returns what a server answers to a check with the given body,
// asking until the status is the one wanted, at most tries times.
func CaptureReply(ctx context.Context, addr, body string, status, tries int) (Reply, error) {
	var r Reply
	for range tries {
		var err error
		if r, err = askOnce(ctx, http.MethodPost, addr+CheckPath, body); err != nil {
			return r, err
		}
		if r.Status == status {
			r.Header.Del("Date")
			r.Header.Del("Content-Length")
			return r, nil
		}
	}
	return r, fmt.Errorf("%d checks %s were not once answered with status %d, but last with %d: %s", tries, body, status, r.Status, r.Body)
}

// askOnce sends a request on a connection of its own.
func askOnce(ctx context.Context, method, url, body string) (Reply, error) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	return AskBy(ctx, client, method, url, body)
}

// AskBy sends a request by a client.
func AskBy(ctx context.Context, client *http.Client, method, url, body string) (Reply, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+url, strings.NewReader(body))
	if err != nil {
		return Reply{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return Reply{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return Reply{response.StatusCode, response.Header, text}, err
}

// Metric returns the sum of a metric of a server over all its labels.
func Metric(ctx context.Context, addr, name string) (sum float64, err error) {
	r, err := askOnce(ctx, http.MethodGet, addr+metricsPath, "")
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(string(r.Body)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series, _, _ = strings.Cut(series, "{"); series != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("%s%s has no %s", addr, metricsPath, name)
	}
	return sum, nil
}
