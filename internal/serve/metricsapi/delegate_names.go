// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/custom_metrics"

	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// The breaker stops requests to a delegate that fails.
const (
	breakerFailures = 5 // consecutive ones
	breakerPause    = 10 * time.Second
)

// breaker counts consecutive failures.
type breaker struct {
	mu       sync.Mutex
	failures int
	until    time.Time // no request before
}

// allow reports whether a request may be sent. After the pause, one request may.
func (b *breaker) allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakerFailures {
		return true
	}
	if now.Before(b.until) {
		return false
	}
	b.until = now.Add(breakerPause)
	return true
}

func (b *breaker) record(ok bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		b.failures = 0
		return
	}
	if b.failures++; b.failures >= breakerFailures {
		b.until = now.Add(breakerPause)
	}
}

// nameCache holds the names of a delegate's metrics, for discovery.
type nameCache struct {
	mu   sync.Mutex
	list []metav1.APIResource
}

func (c *nameCache) set(list []metav1.APIResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = list
}

// custom returns the names as custom metrics: a resource with a metric each.
func (c *nameCache) custom() []source.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]source.Metric, 0, len(c.list))
	for i := range c.list {
		resource, metric, ok := strings.Cut(c.list[i].Name, "/")
		if ok && resource != "" && metric != "" {
			out = append(out, source.Metric{GroupResource: schema.ParseGroupResource(resource), Namespaced: c.list[i].Namespaced, Metric: metric})
		}
	}
	return out
}

// external returns the names as external metrics.
func (c *nameCache) external() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, 0, len(c.list))
	for i := range c.list {
		if name := c.list[i].Name; name != "" && !strings.Contains(name, "/") {
			out = append(out, name)
		}
	}
	return out
}

// Run keeps the names of the delegate's metrics until ctx is done. While the delegate
// does not answer, it keeps the last ones.
func (d *Delegate) Run(ctx context.Context) {
	said := ""
	for {
		list, err := d.list(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if said != err.Error() {
				said = err.Error()
				d.cfg.Log.Warn("cannot read the metrics of the delegate", "group", d.cfg.Group, "url", d.cfg.URL, "err", err)
			}
		default:
			if said = ""; len(list) > maxDelegateNames {
				list = list[:maxDelegateNames]
			}
			d.names.set(list)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delegateNamesEvery):
		}
	}
}

// list reads the names of the metrics in all versions of the API that the delegate has.
func (d *Delegate) list(ctx context.Context) ([]metav1.APIResource, error) {
	served := []string{"v1beta1"}
	if d.cfg.Group == custom_metrics.GroupName {
		served = []string{"v1beta2", "v1beta1"}
	}
	var fails []error
	for _, version := range served {
		a, err := d.ask(ctx, "/apis/"+d.cfg.Group+"/"+version, "", "application/json")
		if err == nil && a.status != http.StatusOK {
			err = errors.New("it answered with the status " + http.StatusText(a.status))
		}
		var list metav1.APIResourceList
		if err == nil {
			err = json.Unmarshal(a.body, &list)
		}
		if err == nil {
			return slices.Clip(list.APIResources), nil
		}
		fails = append(fails, err)
	}
	return nil, errors.Join(fails...)
}
