// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/autoscaler/events"
	"github.com/gpupilot/gpupilot/internal/base/filewatch"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
)

// prometheusRuleKind is the kind of the Prometheus Operator's objects with rules.
var prometheusRuleKind = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRule"}

// filesEvery is how often rule files are read, should a change not have been reported.
const filesEvery = 30 * time.Second

// matchFiles returns the files that a pattern of --rule-files matches, sorted.
func matchFiles(pattern string) ([]string, error) {
	if strings.ContainsAny(filepath.Dir(pattern), "*?[") {
		return nil, errors.New("only the last part of the path may be a pattern")
	}
	return filepath.Glob(pattern)
}

// watchFiles reads the rule files, and reads them again when they change.
func (q *promQL) watchFiles(ctx context.Context) {
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, pattern := range q.p.cfg.promql.ruleFiles {
		if err := filewatch.Watch(ctx, pattern, notify); err != nil && ctx.Err() == nil {
			q.p.log.Warn("cannot watch rule files, reading them every 30 s", "files", pattern, "err", err)
		}
	}
	poll := time.NewTicker(filesEvery)
	defer poll.Stop()
	known := map[string]ruleFile{}
	for {
		q.readFiles(known)
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-changed:
		}
	}
}

// ruleFile is what is known of a rule file.
type ruleFile struct {
	content string
	read    bool // false: it could not be read
}

// readFiles offers the files that have changed, and removes those that have gone. known
// has the files by path.
func (q *promQL) readFiles(known map[string]ruleFile) {
	var found []string
	for _, pattern := range q.p.cfg.promql.ruleFiles {
		files, _ := matchFiles(pattern) // the pattern was checked with the flags
		if len(files) == 0 && !strings.ContainsAny(pattern, "*?[") {
			files = []string{pattern} // a missing file is an error
		}
		found = append(found, files...)
	}
	for _, path := range found {
		content, err := readRuleFile(path)
		if old := known[path]; old.read && err == nil && old.content == string(content) {
			continue
		}
		known[path] = ruleFile{string(content), err == nil}
		var groups []rules.Group
		if err == nil {
			groups, err = rules.Parse(content, q.engine.Selectors)
		}
		q.rules.Set(&rules.Source{ID: path, Groups: groups}, err)
	}
	for path := range known {
		if !slices.Contains(found, path) {
			delete(known, path)
			q.rules.Remove(path)
		}
	}
}

func readRuleFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, rules.MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return b, nil
}

// ruleObjects offers the rules of PrometheusRules.
type ruleObjects struct {
	q        *promQL
	selector labels.Selector

	mu   sync.Mutex
	refs map[string]corev1.ObjectReference // by the source's ID
}

func newRuleObjects(q *promQL) *ruleObjects {
	selector, err := labels.Parse(q.p.cfg.operatorLabels)
	if err != nil {
		selector = labels.Nothing() // the flag was checked
	}
	return &ruleObjects{q: q, selector: selector, refs: map[string]corev1.ObjectReference{}}
}

// watch watches PrometheusRules from the time when their CRD is installed.
func (o *ruleObjects) watch(ctx context.Context) {
	o.q.p.watchInstalled(ctx, prometheusRuleKind, o)
}

// watchInstalled watches a kind from the time when its CRD is installed.
func (p *program) watchInstalled(ctx context.Context, gvk schema.GroupVersionKind, h toolscache.ResourceEventHandler) {
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(gvk)
	if p.clients.AwaitInstalled(ctx, kind) == nil && p.clients.Watch(ctx, kind, h) == nil {
		p.log.Info("watching", "kind", gvk.Kind)
	}
}

// OnAdd implements ResourceEventHandler.
func (o *ruleObjects) OnAdd(obj any, _ bool) { o.offer(obj) }

// OnUpdate implements ResourceEventHandler.
func (o *ruleObjects) OnUpdate(_, obj any) { o.offer(obj) }

// OnDelete implements ResourceEventHandler.
func (o *ruleObjects) OnDelete(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		o.remove(ruleID(u))
	}
}

func (o *ruleObjects) remove(id string) {
	o.mu.Lock()
	delete(o.refs, id)
	o.mu.Unlock()
	o.q.rules.Remove(id)
}

func ruleID(u *unstructured.Unstructured) string {
	return "PrometheusRule/" + u.GetNamespace() + "/" + u.GetName()
}

// offer offers the rules of one object.
func (o *ruleObjects) offer(obj any) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	s := &rules.Source{ID: ruleID(u), Namespace: u.GetNamespace(), Created: u.GetCreationTimestamp().Time}
	if !o.selector.Matches(labels.Set(u.GetLabels())) {
		o.remove(s.ID)
		return
	}
	if o.q.p.cfg.trustsQueriesOf(s.Namespace) {
		s.Namespace = ""
	}
	ref := corev1.ObjectReference{
		APIVersion: prometheusRuleKind.GroupVersion().String(), Kind: prometheusRuleKind.Kind,
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
	}
	o.mu.Lock()
	o.refs[s.ID] = ref
	o.mu.Unlock()
	var text []byte
	spec, _, err := unstructured.NestedMap(u.Object, "spec")
	if err == nil {
		text, err = yaml.Marshal(spec)
	}
	if err == nil {
		s.Groups, err = rules.Parse(text, o.q.engine.Selectors)
	}
	o.q.rules.Set(s, err)
}

// report logs that a source is refused, or accepted again.
func (o *ruleObjects) report(s *rules.Source, problem string) {
	if problem == "" {
		o.q.p.log.Info("recording rules are valid again", "source", s.ID)
		return
	}
	o.q.p.log.Warn("recording rules refused; the last valid version, if any, stays in use", "source", s.ID, "err", problem)
}

// notices returns the problems of PrometheusRules.
func (q *promQL) notices() (list []events.Notice) {
	if q == nil {
		return nil
	}
	problems := q.rules.Problems()
	q.objects.mu.Lock()
	defer q.objects.mu.Unlock()
	for _, x := range problems {
		if ref, ok := q.objects.refs[x.Source]; ok {
			list = append(list, events.Notice{About: ref, Reason: x.Reason, Note: x.Text})
		}
	}
	return list
}

// isScraped reports whether a metric's name belongs to series that are scraped or that
// the controller adds: the rules of a namespace must not record it.
func isScraped(metric string) bool {
	for _, prefix := range []string{"DCGM_", "dcgm_", "gpupilot_", "kube_", "scrape_"} {
		if strings.HasPrefix(metric, prefix) {
			return true
		}
	}
	_, field := names.Resolve(metric)
	return field || metric == "up" || metric == "ALERTS" || metric == "ALERTS_FOR_STATE"
}
