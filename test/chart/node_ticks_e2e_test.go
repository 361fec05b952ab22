// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package chart

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxGap is the longest time without a decision, or without a younger value, with -bars.
	maxGap = 3 * time.Second
	// pollInterval is the time between two looks at the controllers.
	pollInterval = 100 * time.Millisecond
)

// ticks watches that decisions go on and values stay young while replicas of the controller change.
type ticks struct {
	s     *site
	token string // of the account gpupilot-viewer
	done  chan struct{}
	stop  context.CancelFunc

	measured time.Time // the value that was seen last

	mu        sync.Mutex
	decisions map[string]float64 // by pod, of leaders
	decided   progress
	fresh     progress
	polled    progress
}

// progress is how long something took to come again.
type progress struct {
	count   int
	last    time.Time
	longest time.Duration
}

func (p *progress) note(at time.Time) {
	if !p.last.IsZero() {
		p.longest = max(p.longest, at.Sub(p.last))
	}
	p.count++
	p.last = at
}

// watchTicks watches until check is called or the test ends.
func (s *site) watchTicks() *ticks {
	s.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpupilot-viewer"}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"gpupilot.dev"}}}
	must(s.t, s.Client.SubResource("token").Create(s.ctx, account, request))
	ctx, cancel := context.WithCancel(s.ctx)
	k := &ticks{s: s, token: request.Status.Token, done: make(chan struct{}), stop: cancel, decisions: map[string]float64{}}
	go func() {
		defer close(k.done)
		for ctx.Err() == nil {
			k.poll(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(pollInterval):
			}
		}
	}()
	s.t.Cleanup(k.end)
	return k
}

func (k *ticks) end() {
	k.stop()
	<-k.done
}

// poll asks each replica of the controller for its decisions, and the API server for the demo's metric.
func (k *ticks) poll(ctx context.Context) {
	var pods corev1.PodList
	if err := k.s.Client.List(ctx, &pods, client.InNamespace(namespace), controllerPods); err != nil {
		return
	}
	var all sync.WaitGroup
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.PodIP != "" {
			all.Go(func() {
				if body, err := fetch(ctx, "http://"+p.Status.PodIP+":8080/metrics", k.token); err == nil {
					k.noteDecisions(p.Name, body)
				}
			})
		}
	}
	all.Go(func() {
		if times, err := k.s.metricTimes("DCGM_FI_DEV_GPU_UTIL"); err == nil && times[0].After(k.measured) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.measured = times[0]
			k.fresh.note(time.Now())
		}
	})
	all.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.polled.note(time.Now())
}

// noteDecisions notes a tick if the pod leads and has decided since.
func (k *ticks) noteDecisions(pod, metrics string) {
	leads, sum := false, 0.0
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == "gpupilot_leader":
			leads = value == "1"
		case strings.HasPrefix(name, "gpupilot_decisions_total{"):
			at := strings.LastIndexByte(line, ' ')
			if n, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err == nil {
				sum += n
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if before, known := k.decisions[pod]; leads && known && sum > before {
		k.decided.note(time.Now())
	}
	k.decisions[pod] = sum
}

// await waits for two decisions and a younger value from now on.
func (k *ticks) await(what string) {
	k.s.t.Helper()
	k.mu.Lock()
	decided, fresh := k.decided.count, k.fresh.count
	k.mu.Unlock()
	k.s.eventually(what, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.decided.count < decided+2 || k.fresh.count == fresh {
			return fmt.Errorf("%d decisions and %d younger values since", k.decided.count-decided, k.fresh.count-fresh)
		}
		return nil
	})
}

// check ends the watch, and judges the gaps with -bars. The test's own longest look is added: it sees ticks late.
func (k *ticks) check() {
	k.s.t.Helper()
	k.end()
	k.s.log("%d decisions seen, at most %.1f s apart; custom metrics were without a younger value for at most %.1f s; looks at most %.1f s apart",
		k.decided.count, k.decided.longest.Seconds(), k.fresh.longest.Seconds(), k.polled.longest.Seconds())
	for what, p := range map[string]progress{"decision": k.decided, "younger value": k.fresh} {
		if *bars && p.longest > maxGap+k.polled.longest {
			k.s.t.Errorf("the upgrade left %.1f s without a %s, want at most %s", p.longest.Seconds(), what, maxGap)
		}
	}
}

// fetch is an HTTP GET, with a bearer token unless it is empty.
func fetch(ctx context.Context, url, token string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return string(body), err
}
