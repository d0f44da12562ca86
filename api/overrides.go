package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/api/overrides"
	"weir/api/policy"
	"weir/counters"
)

// overrideJSON is an override in answers.
type overrideJSON struct {
	Client        string           `json:"client"`
	Blocked       bool             `json:"blocked,omitempty"`
	Exempt        bool             `json:"exempt,omitempty"`
	Limits        map[string]int64 `json:"limits,omitempty"`
	Until         time.Time        `json:"until"`
	Reason        string           `json:"reason"`
	By            string           `json:"by"`
	Revision      int64            `json:"revision"`
	PolicyMissing bool             `json:"policy_missing,omitempty"`
	Note          string           `json:"note,omitempty"`
}

func (s *Server) overrideToJSON(o overrides.Override) overrideJSON {
	j := overrideJSON{
		Client: o.Key.String(), Blocked: o.Blocked, Exempt: o.Exempt, Limits: o.Limits, Until: o.Until.UTC().Truncate(time.Millisecond),
		Reason: o.Reason, By: o.By, Revision: o.Revision,
	}
	if p := s.active.Load().policies[o.Policy]; p == nil {
		j.PolicyMissing = true
	} else {
		j.Note = p.NoteOn(&policy.Exception{Key: o.Key, Terms: o.Terms})
	}
	return j
}

// setOverrides puts in force what overrides say, by policy and key.
func (s *Server) setOverrides(all map[string]map[policy.ClientKey]policy.Terms) {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.overridden = all
	s.active.Load().Override(all)
}

// listOverrides answers GET /v1/policies/{policy}/overrides.
func (s *Server) listOverrides(c echo.Context, _ change) error {
	name := c.Param("policy")
	list := []overrideJSON{}
	for _, o := range s.cfg.Overrides.All() {
		if o.Policy == name {
			list = append(list, s.overrideToJSON(o))
		}
	}
	if _, err := s.active.Load().Find(name); err != nil && len(list) == 0 {
		return err
	}
	return c.JSON(http.StatusOK, struct {
		Overrides []overrideJSON `json:"overrides"`
		AsOf      float64        `json:"as_of"` // seconds ago
	}{list, s.cfg.Overrides.Age().Round(time.Millisecond).Seconds()})
}

// showOverride answers GET /v1/policies/{policy}/overrides/{key}.
func (s *Server) showOverride(c echo.Context, _ change) error {
	name, key, err := keyOfPath(c)
	if err != nil {
		return err
	}
	for _, o := range s.cfg.Overrides.All() {
		if o.Policy == name && o.Key == key {
			c.Response().Header().Set("ETag", etag(o.Revision))
			return c.JSON(http.StatusOK, s.overrideToJSON(o))
		}
	}
	return overrideProblem(overrides.ErrNone, name, key)
}

// setOverride answers PUT /v1/policies/{policy}/overrides/{key}.
func (s *Server) setOverride(c echo.Context, by change) error {
	name, key, err := keyOfPath(c)
	if err != nil {
		return err
	}
	d, err := s.active.Load().Find(name)
	if err != nil {
		return err
	}
	o, lasts, err := readOverride(c.Request(), d)
	if err != nil {
		return err
	}
	revision, err := ifMatch(c.Request())
	if err != nil {
		return err
	}
	o.Policy, o.Key, o.By = name, key, by.By
	o.Until = s.cfg.Now().Add(lasts)
	by.Client, by.What, by.Reason = key.String(), fmt.Sprintf("override set: %s for %v", describeOverride(&o), lasts), o.Reason
	if o, err = s.cfg.Overrides.Set(c.Request().Context(), o, revision); err != nil {
		return s.overrideFailed(err, by, key)
	}
	s.changed(by)
	c.Response().Header().Set("ETag", etag(o.Revision))
	return c.JSON(http.StatusOK, s.overrideToJSON(o))
}

func describeOverride(o *overrides.Override) string {
	if kind := o.Kind(); kind != "limits" {
		return kind
	}
	return strings.TrimPrefix(fmt.Sprint(o.Limits), "map")
}

// endOverride answers DELETE /v1/policies/{policy}/overrides/{key}.
func (s *Server) endOverride(c echo.Context, by change) error {
	name, key, err := keyOfPath(c)
	if err != nil {
		return err
	}
	revision, err := ifMatch(c.Request())
	if err != nil {
		return err
	}
	was, err := s.cfg.Overrides.Remove(c.Request().Context(), name, key, revision)
	by.Client, by.What, by.Reason = key.String(), strings.TrimSuffix("override ended: "+describeOverride(&was), ": "), was.Reason
	if err != nil {
		return s.overrideFailed(err, by, key)
	}
	s.changed(by)
	return c.NoContent(http.StatusNoContent)
}

// keyOfPath returns the policy and the key that the path names.
func keyOfPath(c echo.Context) (policyName string, key policy.ClientKey, err error) {
	text, err := unescaped(c, c.Param("key"), "key")
	if err != nil {
		return "", key, err
	}
	if key, err = policy.ParseClientKey(text); err == nil && !utf8.ValidString(text) {
		err = errors.New("the key of an override must be UTF-8")
	}
	if err != nil {
		return "", key, badRequest("%v", err)
	}
	return c.Param("policy"), key, nil
}

// readOverride reads the body of a PUT: what it says, and for how long. The error is a
// problem.
func readOverride(r *http.Request, d *decide.Decider) (o overrides.Override, lasts time.Duration, err error) {
	b, err := readBody(r, maxCheckBytes)
	if err != nil {
		return o, 0, err
	}
	defer b.release()
	text := ""
	err = b.whole(func(name []byte) (err error) {
		switch string(name) {
		case "blocked":
			o.Blocked, err = b.boolean("blocked")
		case "exempt":
			o.Exempt, err = b.boolean("exempt")
		case "limits":
			o.Limits = make(map[string]int64)
			err = b.object("limits", func(name []byte) error {
				limit := string(name)
				o.Limits[limit], err = b.integer("limits.", limit)
				return err
			})
		case "for":
			text, err = b.string("for", "")
		case "reason":
			o.Reason, err = b.string("reason", "")
		default:
			err = unknownField(string(name), "blocked, exempt, limits, for, reason")
		}
		return err
	})
	if err != nil {
		return o, 0, err
	}
	kinds := 0
	for _, given := range []bool{o.Blocked, o.Exempt, len(o.Limits) > 0} {
		if given {
			kinds++
		}
	}
	if kinds != 1 {
		return o, 0, badRequest("an override needs one of \"blocked\": true, \"exempt\": true and \"limits\": {\"<limit>\": <number>}")
	}
	if err := checkLimits(o.Limits, d); err != nil {
		return o, 0, err
	}
	if len(o.Reason) > overrides.MaxReasonBytes {
		return o, 0, badRequest("reason is %d bytes long; at most %d are possible", len(o.Reason), overrides.MaxReasonBytes)
	}
	lasts, err = policy.ParseDuration(text)
	if err != nil || lasts < overrides.MinTime || lasts > overrides.MaxTime {
		return o, 0, badRequest("for is %q and must be how long it is to last, from %v to %dd, such as \"10m\"", text, overrides.MinTime, overrides.MaxTime/(24*time.Hour))
	}
	return o, lasts, nil
}

// checkLimits returns a problem unless all of these limits are possible.
func checkLimits(limits map[string]int64, d *decide.Decider) error {
	all := d.Listed()
	for name, value := range limits {
		i := slices.IndexFunc(all, func(l *policy.Limit) bool { return l.Name == name && l.Limit > 0 })
		if i < 0 {
			return badRequest("policy %q has no limit %q that an override can change; it can change %s", d.Name, name, namesOfChangeable(all))
		}
		if most := all[i].LargestLimit(); value < 1 || value > most {
			return badRequest("limits: %q is %d and must be a whole number from 1 to %d", name, value, most)
		}
	}
	return nil
}

// namesOfChangeable writes the names of the limits that an override can change, the first of
// many.
func namesOfChangeable(limits []*policy.Limit) string {
	const most = 10
	var names []string
	for _, l := range limits {
		if l.Limit > 0 {
			names = append(names, strconv.Quote(l.Name))
		}
	}
	if len(names) > most {
		names = append(names[:most], "...")
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

func etag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// ifMatch returns the revision that a request asks for; 0 for any.
func ifMatch(r *http.Request) (revision int64, err error) {
	text := r.Header.Get("If-Match")
	if text == "" {
		return 0, nil
	}
	if unquoted, err := strconv.Unquote(text); err == nil {
		revision, _ = strconv.ParseInt(unquoted, 10, 64)
	}
	if revision < 1 {
		return 0, badRequest("If-Match is %s and must be the revision of an override, in quotes", text)
	}
	return revision, nil
}

// overrideFailed returns the problem of a change to an override that failed with err. If the
// store may have made the change all the same, the audit says who asked for it.
func (s *Server) overrideFailed(err error, by change, key policy.ClientKey) error {
	p := overrideProblem(err, by.Policy, key)
	if p.Status == http.StatusServiceUnavailable && !unchanged(err) {
		by.What, by.Error = strings.Replace(by.What, "override", "override perhaps", 1), err.Error()
		s.changed(by)
	}
	return p
}

// overrideProblem returns the problem of an override that wasn't found or changed.
func overrideProblem(err error, policyName string, key policy.ClientKey) *problem {
	switch {
	case errors.Is(err, overrides.ErrNone):
		return newProblem(http.StatusNotFound, "there is no override for %s in policy %q", key.Means(), policyName)
	case errors.Is(err, overrides.ErrChanged):
		return newProblem(http.StatusPreconditionFailed, "the override for %s has another revision by now; GET it again", key.Means())
	case errors.Is(err, overrides.ErrFull):
		return newProblem(http.StatusConflict, "%v", err)
	case unchanged(err):
		return storeFailed(err, "no override was changed, as the store failed; do it again")
	default:
		return storeFailed(err, "the store could not say whether this was done; do it again")
	}
}

// unchanged reports whether the store, which failed with err, has surely changed nothing.
func unchanged(err error) bool {
	return errors.Is(err, counters.ErrNotSent) || errors.Is(err, counters.ErrRefused)
}
