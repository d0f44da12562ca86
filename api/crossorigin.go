package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

var crossOrigin = http.NewCrossOriginProtection()

// fromElsewhere returns a problem if a page of another site may have made r.
//
// With localOnly, the Host of r must be localhost or an address: another site's name may be made to
// resolve to this machine. In any case, a request that a browser says comes from another site may
// only read: that site's page can't see the answer. Forward auth is left out, as its headers, Host
// too, may be those of the request that it asks about; so is /healthz, as some balancers send no Host.
func fromElsewhere(r *http.Request, localOnly bool) error {
	if strings.HasPrefix(r.URL.Path, "/v1/auth/") || r.URL.Path == "/healthz" {
		return nil
	}
	if localOnly && !isLocal(r.Host) {
		return newProblem(http.StatusMisdirectedRequest, "without -token-file and with -console, this service is asked as localhost or by its address, not as %q", r.Host)
	}
	if crossOrigin.Check(r) != nil && (strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == "/json") {
		return newProblem(http.StatusForbidden, "pages of other sites may not ask for this")
	}
	return nil
}

// isLocal reports whether a Host is localhost or an address.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}
