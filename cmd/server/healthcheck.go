package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// healthcheckTimeout is how long an instance may take to say that it is well.
const healthcheckTimeout = 2 * time.Second

// errCertificateWanted says that the instance is well enough to ask for a
// client's certificate.
var errCertificateWanted = errors.New("the instance wants a client certificate")

// healthcheck returns nil if the instance with these flags answers on its own
// listener. It sends and learns nothing that is secret, so it takes whatever
// certificate the instance has: that one is for other names than loopback, and
// the file may have a newer one. It has no client certificate: with -tls-client-ca
// it returns nil if the instance asks for one.
func healthcheck(cfg *config) error {
	if _, port, err := net.SplitHostPort(cfg.listen); err != nil {
		return fmt.Errorf("-listen: %w", err)
	} else if port == "" || port == "0" {
		return fmt.Errorf("-healthcheck needs the port that the instance listens on; -listen %s has none", cfg.listen)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			// An address such as 0.0.0.0, [::] or none is dialed as loopback.
			return new(net.Dialer).DialContext(ctx, "tcp", cfg.listen)
		},
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return nil, errCertificateWanted
			},
		},
	}
	scheme := "http"
	if cfg.tlsCert != "" {
		scheme = "https"
	}
	client := http.Client{Transport: transport, Timeout: healthcheckTimeout}
	resp, err := client.Get(scheme + "://weir/healthz")
	switch {
	case errors.Is(err, errCertificateWanted):
		return nil
	case err != nil:
		if failure, ok := errors.AsType[*url.Error](err); ok {
			err = failure.Err
		}
		return fmt.Errorf("weir at %s doesn't answer: %w", cfg.listen, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("what listens at %s answers /healthz with %s", cfg.listen, resp.Status)
	}
	return nil
}
