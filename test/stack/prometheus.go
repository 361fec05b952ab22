// SPDX-License-Identifier: Apache-2.0

package stack

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
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/test/cluster"
)

// Prometheus is the PromQL backend: Prometheus itself where it is on the PATH, else a server that answers
// any query with the backlog. It can be stopped and started again, at the same address.
type Prometheus struct {
	address string
	dir     string    // of the real one
	process *exec.Cmd // the real one; nil: it does not run
	server  *http.Server
	page    *http.Server // what the real one scrapes
	backlog atomic.Uint64
}

// SetBacklog sets what the query backlog answers, the one metric of this backend; NaN is no series.
func (p *Prometheus) SetBacklog(n float64) { p.backlog.Store(math.Float64bits(n)) }

func (p *Prometheus) url() string { return "http://" + p.address }

// Start starts it, or starts it again.
func (p *Prometheus) Start() error {
	program, err := exec.LookPath("prometheus")
	if err == nil {
		return p.startReal(program)
	}
	l, err := net.Listen("tcp", cmp.Or(p.address, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	p.address = l.Addr().String()
	p.server = &http.Server{Handler: http.HandlerFunc(p.answerBacklog), ReadHeaderTimeout: 5 * time.Second}
	go func(s *http.Server) { _ = s.Serve(l) }(p.server) // ends with Close
	return nil
}

func (p *Prometheus) answerBacklog(w http.ResponseWriter, _ *http.Request) {
	result := "[]"
	if n := math.Float64frombits(p.backlog.Load()); !math.IsNaN(n) {
		result = fmt.Sprintf(`[{"metric": {}, "value": [%d, "%g"]}]`, time.Now().Unix(), n)
	}
	fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": %s}}`, result)
}

func (p *Prometheus) startReal(program string) error {
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
func (p *Prometheus) prepareReal() (err error) {
	if p.dir, err = os.MkdirTemp("", "prometheus-"); err != nil {
		return err
	}
	scraped, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.page = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := math.Float64frombits(p.backlog.Load()); !math.IsNaN(n) {
			fmt.Fprintf(w, "backlog{namespace=%q} %g\n", WorkloadNamespace, n) // queries see their own namespace
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

// Interrupt stops the backend as a crash would.
func (p *Prometheus) Interrupt() {
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
func (p *Prometheus) stop() {
	p.Interrupt()
	if p.page != nil {
		_ = p.page.Close()
		_ = os.RemoveAll(p.dir)
	}
}
