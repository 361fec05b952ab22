// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/cluster"
)

// backlog is the one metric that the PromQL backend of these tests knows; NaN is no series.
var backlog atomic.Uint64

func setBacklog(n float64) { backlog.Store(math.Float64bits(n)) }

// prometheus is the PromQL backend: Prometheus itself where it is on the PATH, else a server that answers
// any query with the backlog. It can be stopped and started again, at the same address.
type prometheus struct {
	address string
	dir     string    // of the real one
	process *exec.Cmd // the real one; nil: it does not run
	server  *http.Server
	page    *http.Server // what the real one scrapes
}

func (p *prometheus) url() string { return "http://" + p.address }

func (p *prometheus) start() error {
	program, err := exec.LookPath("prometheus")
	if err == nil {
		return p.startReal(program)
	}
	l, err := net.Listen("tcp", cmp.Or(p.address, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	p.address = l.Addr().String()
	p.server = &http.Server{Handler: http.HandlerFunc(answerBacklog), ReadHeaderTimeout: 5 * time.Second}
	go func(s *http.Server) { _ = s.Serve(l) }(p.server) // ends with Close
	return nil
}

func answerBacklog(w http.ResponseWriter, _ *http.Request) {
	result := "[]"
	if n := math.Float64frombits(backlog.Load()); !math.IsNaN(n) {
		result = fmt.Sprintf(`[{"metric": {}, "value": [%d, "%g"]}]`, time.Now().Unix(), n)
	}
	fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": %s}}`, result)
}

func (p *prometheus) startReal(program string) error {
	if p.dir == "" {
		if err := p.prepareReal(); err != nil {
			return err
		}
	}
	p.process = exec.Command(program, "--config.file="+filepath.Join(p.dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(p.dir, "data"), "--web.listen-address="+p.address)
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.process.Stdout, p.process.Stderr = log, log
	return p.process.Start()
}

// prepareReal serves the backlog to be scraped, and chooses Prometheus's address.
func (p *prometheus) prepareReal() (err error) {
	if p.dir, err = os.MkdirTemp("", "prometheus-"); err != nil {
		return err
	}
	scraped, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.page = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := math.Float64frombits(backlog.Load()); !math.IsNaN(n) {
			fmt.Fprintf(w, "backlog{namespace=%q} %g\n", namespace, n) // queries see their own namespace
		}
	})}
	go func() { _ = p.page.Serve(scraped) }() // ends with Close
	port, err := cluster.FreePort("127.0.0.1")
	if err != nil {
		return err
	}
	p.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: x, honor_labels: true, static_configs: [{targets: [%q]}]}]\n", scraped.Addr())
	return os.WriteFile(filepath.Join(p.dir, "prometheus.yml"), []byte(text), 0o600)
}

// interrupt stops the backend as a crash would.
func (p *prometheus) interrupt() {
	if p.server != nil {
		_ = p.server.Close()
	}
	if p.process != nil {
		_ = p.process.Process.Kill()
		_ = p.process.Wait()
		p.process = nil
	}
}

// stop ends it for good.
func (p *prometheus) stop() {
	p.interrupt()
	if p.page != nil {
		_ = p.page.Close()
		_ = os.RemoveAll(p.dir)
	}
}

// While Prometheus is down the workload is held, and the status says why. Afterwards the query decides again.
func TestPrometheusDown(t *testing.T) {
	const name = "promdown"
	setBacklog(12)
	offer(name, 0.1)
	deploy(t, name, 1, time.Second)
	autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Signals = []v1alpha1.Signal{{
			Query:  &v1alpha1.QuerySignal{PromQL: "sum(backlog)"},
			Target: &v1alpha1.Target{Value: resource.MustParse("5")},
		}}
	})
	wantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	seen := record(t, name)

	rig.prometheus.interrupt()
	setBacklog(0)
	eventually(t, func() error {
		for _, c := range status(t, name).Conditions {
			if c.Type == v1alpha1.ConditionSignals && c.Status != "True" && strings.Contains(c.Message, "cannot be reached") {
				return nil
			}
		}
		return fmt.Errorf("the status does not say that Prometheus cannot be reached: %+v", status(t, name).Conditions)
	})
	stays(t, name, 3, 6*time.Second) // longer than the window
	if v := seen.values(); len(v) != 1 {
		t.Errorf("replicas went %v while Prometheus was down", v)
	}

	if err := rig.prometheus.start(); err != nil {
		t.Fatal(err)
	}
	wantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}
