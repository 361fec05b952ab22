// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Limits of a MinuteQuery.
const (
	defaultSince   = 24 * time.Hour
	defaultPoints  = 720
	maxMinuteNames = 64
)

// parseMinuteQuery parses the parameters kind, since, step and metric.
func parseMinuteQuery(v url.Values, now time.Time) (q view.MinuteQuery, err error) {
	if q.Kind = cmp.Or(v.Get("kind"), history.KindAutoscaler); len(q.Kind) > view.MaxName {
		return q, fmt.Errorf("kind has %d bytes, want at most %d", len(q.Kind), view.MaxName)
	}
	since := defaultSince
	if s := v.Get("since"); s != "" {
		if since, err = time.ParseDuration(s); err != nil || since < time.Minute || since > history.Retention {
			return q, fmt.Errorf("since is %.40q, want a duration from 1m to %s", s, history.Retention)
		}
	}
	q.Step = max(time.Minute, (since / defaultPoints).Truncate(time.Minute))
	if s := v.Get("step"); s != "" {
		if q.Step, err = time.ParseDuration(s); err != nil || q.Step < time.Minute || q.Step > 24*time.Hour || q.Step%time.Minute != 0 {
			return q, fmt.Errorf("step is %.40q, want whole minutes up to 24h", s)
		}
	}
	if n := len(v["metric"]); n > maxMinuteNames {
		return q, fmt.Errorf("metric is given %d times, want at most %d", n, maxMinuteNames)
	}
	for _, text := range v["metric"] {
		m, err := history.ParseMetric(text)
		if err != nil {
			return q, fmt.Errorf("metric is %.200q: %w", text, err)
		}
		q.Metrics = append(q.Metrics, m)
	}
	q.To = now
	q.From = now.Add(-since).Truncate(q.Step)
	return q, nil
}

func (p *Page) serveMinutes(w http.ResponseWriter, r *http.Request, v Viewer) {
	q, err := parseMinuteQuery(r.URL.Query(), time.Now())
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	p.serveWorkload(w, r, v, func(namespace, name string) (any, bool, error) {
		return p.source.Minutes(namespace, name, &q)
	})
}
