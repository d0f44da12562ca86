package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

var crossOrigin = http.NewCrossOriginProtection()

// fromElsewhere returns a problem if r may be made by a page of another site.
//
// With localOnly, that is so if r is for another host than localhost or an address: the site may
// have its name point here. Else it is so if a browser says it and r may change something: what
// only reads may come from anywhere, as the page doesn't get to see the answer. What a request of
// forward auth says, its host too, may be of the request that it asks about, and doesn't count.
// Nor does the host of a look at health: some balancers name none.
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
