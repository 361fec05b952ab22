// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane on this machine, for the demo and the end-to-end tests: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler from the one binary that test/kube builds, each in its own
// process, the API server on a loopback port of its own, with certificates made at the start.
//
// No process outlives the program that started it: Stop ends all of them and removes the directory. If the program is
// killed, the kernel kills them as well (Linux), and only the directory remains.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// The names of the components, also in Config.ExtraArgs and Cluster.PIDs.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

// startTimeout bounds a start. It takes about three seconds on two idle cores. Only a failure takes as long as this, however
// busy the machine is.
const startTimeout = 10 * time.Minute

// startAttempts bounds the attempts of Start with other ports, if a port was taken between its choice and its use.
const startAttempts = 4

// Config holds the settings of the control plane. The zero value means the defaults.
type Config struct {
	// Binary is the multi-call binary that test/kube builds; empty means the one that FindBinary finds.
	Binary string
	// Dir keeps etcd's data, certificates, kubeconfigs and logs, and must not hold another cluster's.
	// Empty means a temporary directory, which Stop removes.
	Dir string
	// BindAddress is the IP address of this machine that the API server listens on; empty means 127.0.0.1.
	// A kubelet in a network namespace needs one that is not loopback.
	BindAddress string
	// ExtraSANs are further IP addresses and DNS names in the API server's certificate.
	ExtraSANs []string
	// HPASyncPeriod is the HorizontalPodAutoscaler's sync period; 0 means Kubernetes' default of 15 s.
	HPASyncPeriod time.Duration
	// HPADownscaleStabilization is the HorizontalPodAutoscaler's default stabilisation window for scaling down; 0 means
	// Kubernetes' default of 5 min.
	HPADownscaleStabilization time.Duration
	// ExtraArgs are further flags by component, after ours, so that they win.
	ExtraArgs map[string][]string
	// Log receives one line per step; nil discards them.
	Log *slog.Logger
}

// Cluster is a running control plane. Its methods may be called from several goroutines.
type Cluster struct {
	cfg    Config
	log    *slog.Logger
	dir    string
	ownDir bool
	port   int // the API server's
	pki    *pki
	admin  string
	client *http.Client
	// unverified accepts any certificate of the API server, even an expired one. It checks whether the API server is up.
	unverified *http.Client

	mu      sync.Mutex
	procs   map[string]*process
	stopped bool

	failOnce sync.Once
	failed   chan struct{}
	failure  error
}

// Start starts a control plane and returns when it serves: the API server is ready and the controllers have made the
// default namespace's service account, without which no pod can be created. ctx bounds the start only.
// The error names the component that failed and quotes the end of its log; nothing is left running then.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Binary == "" {
		binary, err := FindBinary()
		if err != nil {
			return nil, err
		}
		cfg.Binary = binary
	}
	binary, err := filepath.Abs(cfg.Binary)
	if err != nil {
		return nil, err
	}
	cfg.Binary = binary
	if cfg.BindAddress == "" {
		cfg.BindAddress = "127.0.0.1"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		c, err := startOnce(ctx, cfg)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, errPortTaken) || attempt == startAttempts {
			return nil, fmt.Errorf("start a control plane: %w", err)
		}
		cfg.Log.Warn("a port was taken, starting again with others", "attempt", attempt, "err", err)
	}
}

func startOnce(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg, log: cfg.Log, dir: cfg.Dir, procs: map[string]*process{}, failed: make(chan struct{})}
	if err := c.prepare(); err != nil {
		c.Stop()
		return nil, err
	}
	if err := c.startAll(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// prepare writes the directory, the certificates and the kubeconfigs of the components.
func (c *Cluster) prepare() error {
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "gpupilot-cluster-")
		if err != nil {
			return err
		}
		c.dir, c.ownDir = dir, true
	}
	dir, err := filepath.Abs(c.dir)
	if err != nil {
		return err
	}
	c.dir = dir
	// Remove the state and the logs of an earlier attempt or cluster, which had other certificates.
	for _, left := range []string{etcdData, etcdSocket, Etcd + ".log", APIServer + ".log", ControllerManager + ".log", Scheduler + ".log"} {
		if err := os.RemoveAll(filepath.Join(c.dir, left)); err != nil {
			return err
		}
	}
	if c.port, err = FreePort(c.cfg.BindAddress); err != nil {
		return err
	}
	if c.pki, err = newPKI(filepath.Join(c.dir, "pki"), serverNames(c.cfg), time.Now()); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}
	if c.admin, err = c.KubeconfigFor("kubernetes-admin", "system:masters"); err != nil {
		return err
	}
	if c.client, err = c.pki.httpClient("kubernetes-admin", "system:masters"); err != nil {
		return err
	}
	c.unverified, err = c.pki.httpClient("kubernetes-admin", "system:masters")
	if err == nil {
		c.unverified.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true
	}
	return err
}

func (c *Cluster) startAll(ctx context.Context) error {
	began := time.Now()
	etcd, err := c.start(Etcd, c.etcdArgs())
	if err != nil {
		return err
	}
	if err := c.await(ctx, etcd, exists(filepath.Join(c.dir, etcdSocket))); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	// The controller-manager must start after the API server: it exits if its RBAC rules do not exist yet.
	managerArgs, err := c.controllerManagerArgs()
	if err != nil {
		return err
	}
	manager, err := c.start(ControllerManager, managerArgs)
	if err != nil {
		return err
	}
	schedulerArgs, err := c.schedulerArgs()
	if err != nil {
		return err
	}
	if _, err := c.start(Scheduler, schedulerArgs); err != nil {
		return err
	}
	account := c.URL() + "/api/v1/namespaces/default/serviceaccounts/default"
	if err := c.await(ctx, manager, httpOK(c.client, account)); err != nil {
		return err
	}
	c.log.Info("control plane ready", "url", c.URL(), "dir", c.dir, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// start starts one component. If it ends unexpectedly, the cluster fails.
func (c *Cluster) start(name string, args []string) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, errStopped
	}
	if p := c.procs[name]; p != nil && !p.exited() {
		return nil, fmt.Errorf("%s is already running (pid %d)", name, p.Pid)
	}
	args = append(append([]string{name}, args...), c.cfg.ExtraArgs[name]...)
	p, err := startProcess(name, c.cfg.Binary, args, c.dir, c.fail)
	if err != nil {
		return nil, err
	}
	c.procs[name] = p
	c.log.Debug("started", "component", name, "pid", p.Pid)
	return p, nil
}

func (c *Cluster) fail(err error) {
	c.failOnce.Do(func() {
		c.failure = err
		close(c.failed)
	})
}

// Failed returns a channel that is closed when a component has ended unexpectedly. Err then returns the reason.
func (c *Cluster) Failed() <-chan struct{} { return c.failed }

// Err returns the reason why the cluster failed; nil: it has not.
func (c *Cluster) Err() error {
	select {
	case <-c.failed:
		return c.failure
	default:
		return nil
	}
}

// StopAPIServer kills the API server, as the loss of its machine would. The other components keep running and retry.
func (c *Cluster) StopAPIServer() {
	c.mu.Lock()
	p := c.procs[APIServer]
	c.mu.Unlock()
	if p != nil {
		p.stop()
	}
}

// StartAPIServer starts a stopped API server again, with the same address, certificates and state, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	args, err := c.apiServerArgs()
	if err != nil {
		return err
	}
	p, err := c.start(APIServer, args)
	if err != nil {
		return err
	}
	return c.await(ctx, p, httpOK(c.unverified, c.URL()+"/readyz"))
}

// RestartAPIServer is StopAPIServer and StartAPIServer.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	c.StopAPIServer()
	return c.StartAPIServer(ctx)
}

// ExpireServerCertificate restarts the API server with a certificate that has expired: no client that verifies it can connect.
func (c *Cluster) ExpireServerCertificate(ctx context.Context) error {
	c.StopAPIServer()
	if err := c.pki.issueServer(time.Now().Add(-time.Minute)); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// RenewServerCertificate writes a new, valid certificate of the API server, which reloads it after a moment.
func (c *Cluster) RenewServerCertificate() error {
	return c.pki.issueServer(time.Now().Add(validity))
}

// Stop kills every process of the control plane, waits for their ends and removes the directory if Start made it. There
// is no graceful shutdown, since their state is not used again. A second call does nothing.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	var ends sync.WaitGroup
	for _, p := range c.procs {
		ends.Go(p.stop)
	}
	ends.Wait()
	if c.ownDir {
		if err := os.RemoveAll(c.dir); err != nil {
			c.log.Warn("directory left behind", "dir", c.dir, "err", err)
		}
	}
}

// URL returns the API server's base URL, https://ADDRESS:PORT.
func (c *Cluster) URL() string { return "https://" + hostPort(c.cfg.BindAddress, c.port) }

// Dir returns the directory of the cluster's data, certificates, kubeconfigs and logs (etcd.log, kube-apiserver.log, ...).
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig returns the path of a kubeconfig with all permissions (group system:masters).
func (c *Cluster) Kubeconfig() string { return c.admin }

// KubeconfigFor writes a kubeconfig with a new client certificate for that user and those groups and returns its path.
// A node is user "system:node:NAME" in group "system:nodes". The certificate lasts a year.
func (c *Cluster) KubeconfigFor(user string, groups ...string) (string, error) {
	path, err := c.pki.writeKubeconfig(filepath.Join(c.dir, "kubeconfigs"), c.URL(), user, groups)
	if err != nil {
		return "", fmt.Errorf("kubeconfig for %s: %w", user, err)
	}
	return path, nil
}

// CAPath returns the file of the certificate (PEM) that signs the API server's certificate and all client certificates.
func (c *Cluster) CAPath() string { return c.pki.cluster.certPath }

// FrontProxyCAPath returns the file of the certificate (PEM) that signs the API server's client certificate for requests
// to aggregated API servers.
func (c *Cluster) FrontProxyCAPath() string { return c.pki.frontProxy.certPath }

// HTTPClient returns a client with all permissions (group system:masters) that trusts the API server's certificate.
func (c *Cluster) HTTPClient() *http.Client { return c.client }

// PIDs returns the process ids of the running components, by component.
func (c *Cluster) PIDs() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := make(map[string]int, len(c.procs))
	for _, name := range slices.Sorted(maps.Keys(c.procs)) {
		if p := c.procs[name]; !p.exited() {
			pids[name] = p.Pid
		}
	}
	return pids
}
