// SPDX-License-Identifier: Apache-2.0

// Package stack runs all of GPUPilot on this machine: a real control plane (package
// cluster), simulated GPU nodes (package simnode), the agent's DaemonSet, whose pods are
// real agents, and the controller, with the manifests of deploy/. The demo, the
// end-to-end tests and the benchmarks use it.
//
// Tests share a stack: each adds its own workloads ([Stack.Offer], [Stack.Deploy]), GPUAutoscalers and nodes, and may
// restart the controller with other arguments.
package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/child"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/simnode"
)

// Namespace is the namespace of the agents and of the controller's objects.
const Namespace = "gpupilot-system"

// The service accounts of deploy/rbac. The controller runs with a client certificate
// with the name of its account.
const (
	ControllerAccount = "gpupilot-controller"
	AgentAccount      = "gpupilot-agent"

	accounts = "system:serviceaccount:" + Namespace + ":" // the prefix of a service account's user name
)

// AgentImage is the image of the agent on the simulated nodes, for pods with
// simnode.ExecImage.
const AgentImage = "ghcr.io/gpupilot/gpupilot-agent:e2e"

// Config holds the settings of a Stack. The zero value runs everything with defaults.
type Config struct {
	Root      string // the repository; default: found from the working directory
	Nodes     int    // default 3
	GPUs      int    // per node, default 8
	Workloads []simnode.Workload
	// Images has further programs of bin/ by the images of containers, for pods with simnode.ExecImage.
	Images map[string]string

	// HPASyncPeriod is the HorizontalPodAutoscaler's; 0: Kubernetes' 15 s.
	HPASyncPeriod time.Duration
	// AgentArgv replaces the agents' command line; empty: the agent with its
	// default flags on simulated GPUs. simnode.ExecAnnotation says what is filled in.
	AgentArgv []string
	// AgentArgs come after the default arguments, if AgentArgv is empty.
	AgentArgs []string
	// DeviceID returns the kubelet's device id of GPU i of a node; nil: sim.UUID.
	DeviceID func(node string, i int) string
	// ControllerArgs come after the default arguments.
	ControllerArgs []string
	// Backlog starts a PromQL backend and gives it to the controller: [Stack.Prometheus].
	Backlog bool
	// ControllerKubeconfig replaces the kubeconfig of the controller or of its standby, such as by one of a proxy; nil: as
	// it is.
	ControllerKubeconfig func(standby bool, kubeconfig string) (string, error)
	// AgentTokens makes agents require tokens, and the controller send its own.
	AgentTokens  bool
	NoController bool // StartController starts it later
	NoAgents     bool // nodes without the agents' DaemonSet, as where a GPUExporter makes it
	NoNodes      bool // neither nodes nor agents: the caller brings its own
	Hollow       bool // neither, and the control plane gives no node up: see [Stack.JoinHollow]

	// Install installs GPUPilot's objects instead of applying the manifests of deploy/, as Helm does. The controller's
	// Service is to be an ExternalName of localhost, and the APIServices' port is ServicePort.
	Install func(context.Context, *Stack) error

	// ClusterArgs are further flags of the control plane's components, by component.
	ClusterArgs map[string][]string

	Log *slog.Logger // nil discards
}

// Stack is a running control plane with nodes and controllers.
type Stack struct {
	Cluster *cluster.Cluster
	Nodes   *simnode.Nodes
	REST    *rest.Config // all permissions, no rate limit
	Client  client.WithWatch

	// ControllerURL is the URL of the controller's page, JSON and metrics.
	ControllerURL string
	// Prometheus is the PromQL backend of Config.Backlog.
	Prometheus Prometheus

	cfg         Config
	dir         string
	securePort  int
	servicePort int // of the APIServices: the controller's secure port, whichever replica registers them
	controller  atomic.Pointer[child.Process]

	mu     sync.Mutex
	loads  map[string]*Load // by the name of the workload
	closes []func()         // of OnClose
}

// OnClose calls f when the stack ends, after the controller's end.
func (s *Stack) OnClose(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closes = append(s.closes, f)
}

// Start starts everything and returns when the agents answer and the
// controller serves. On an error nothing is left running.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	if cfg.Root == "" {
		root, err := findRoot()
		if err != nil {
			return nil, err
		}
		cfg.Root = root
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stack{cfg: cfg, loads: map[string]*Load{}}
	if err := s.start(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "gpupilot-") // short: sockets live below it
	if err != nil {
		return err
	}
	s.dir = dir
	if s.cfg.Backlog {
		if err := s.Prometheus.Start(); err != nil {
			return err
		}
		s.cfg.ControllerArgs = append(s.cfg.ControllerArgs, "--prometheus-url", s.Prometheus.url())
	}
	args := map[string][]string{}
	maps.Copy(args, s.cfg.ClusterArgs)
	if s.cfg.Hollow {
		s.cfg.NoNodes = true
		maps.Copy(args, hollowArgs)
	}
	s.Cluster, err = cluster.Start(ctx, cluster.Config{
		Binary: filepath.Join(s.cfg.Root, "bin", "kube"), Dir: filepath.Join(dir, "c"),
		HPASyncPeriod: s.cfg.HPASyncPeriod, ExtraArgs: args, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	if err := s.connect(); err != nil {
		return err
	}
	if err := s.install(ctx); err != nil {
		return err
	}
	if err := s.awaitPolicies(ctx); err != nil {
		return err
	}
	if !s.cfg.NoNodes {
		if err := s.startNodes(ctx); err != nil {
			return err
		}
	}
	if s.cfg.NoController {
		return nil
	}
	return s.StartController(ctx)
}

// install applies the manifests of deploy/, unless the configuration has another way.
func (s *Stack) install(ctx context.Context) error {
	if s.cfg.Install != nil {
		return s.cfg.Install(ctx, s)
	}
	globs := []string{"deploy/crds/*.yaml", "deploy/admission/*.yaml", "deploy/rbac/*.yaml"}
	if s.cfg.AgentTokens {
		globs = append(globs, "deploy/agent-auth/*.yaml")
	}
	for _, glob := range globs {
		if err := s.applyFiles(ctx, glob); err != nil {
			return err
		}
	}
	return s.grant(ctx, s.cfg.ControllerArgs)
}

// grant applies the rights that arguments of the controller need.
func (s *Stack) grant(ctx context.Context, args []string) error {
	for arg, glob := range map[string]string{
		"--node-health": "deploy/node-health/*.yaml", "--external-metrics": "deploy/external-metrics/*.yaml",
	} {
		if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, arg) }) {
			if err := s.applyFiles(ctx, glob); err != nil {
				return err
			}
		}
	}
	return nil
}

// connect makes the clients and the namespace.
func (s *Stack) connect() error {
	cfg, err := restConfig(s.Cluster.Kubeconfig())
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	s.REST = cfg
	ctrllog.SetLogger(logr.Discard()) // otherwise it logs a warning
	s.Client, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	return err
}

func (s *Stack) applyFiles(ctx context.Context, glob string) error {
	files, err := filepath.Glob(filepath.Join(s.cfg.Root, glob))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no files match %s in %s", glob, s.cfg.Root)
	}
	for _, f := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := s.Apply(ctx, body); err != nil {
			return fmt.Errorf("apply %s: %w", f, err)
		}
	}
	return nil
}

// Apply creates the objects of a YAML stream, with missing namespaces. Existing objects
// are not changed. It retries while a kind is not served yet, as just after the creation
// of its CRD.
func (s *Stack) Apply(ctx context.Context, manifests []byte) error {
	dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		var o unstructured.Unstructured
		if err := dec.Decode(&o.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(o.Object) == 0 {
			continue
		}
		if err := s.create(ctx, &o); err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
}

// InstallKind creates the CRD of another project's namespaced kind, without the schema of
// its fields.
func (s *Stack) InstallKind(ctx context.Context, kind schema.GroupVersionKind) error {
	return s.Apply(ctx, fmt.Appendf(nil, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.%[3]s, annotations: {api-approved.kubernetes.io: "unapproved, for tests"}} # groups of k8s.io need it
spec:
  group: %[3]s
  names: {kind: %[2]s, listKind: %[2]sList, plural: %[1]ss, singular: %[1]s}
  scope: Namespaced
  versions:
  - {name: %[4]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, strings.ToLower(kind.Kind), kind.Kind, kind.Group, kind.Version))
}

func (s *Stack) create(ctx context.Context, o *unstructured.Unstructured) error {
	if err := s.ensureNamespace(ctx, o.GetNamespace()); err != nil {
		return err
	}
	return Await(ctx, startTimeout, func() error {
		err := s.Client.Create(ctx, o.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func (s *Stack) ensureNamespace(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	ns := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
	}}
	if err := s.Client.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// AwaitNamespace creates a namespace, unless it exists, and waits until pods may be created in it.
func (s *Stack) AwaitNamespace(ctx context.Context, name string) error {
	if err := s.ensureNamespace(ctx, name); err != nil {
		return err
	}
	return Await(ctx, startTimeout, func() error {
		return s.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	})
}

// startNodes registers the nodes and deploys the agents on them.
func (s *Stack) startNodes(ctx context.Context) error {
	clients, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		return err
	}
	argv := s.cfg.AgentArgv
	if len(argv) == 0 {
		argv = []string{
			filepath.Join(s.cfg.Root, "bin", "gpupilot-agent"), "--backend", "sim", "--sim-state", "$(SIM_STATE)",
			"-k", "--pod-resources-kubelet-socket", "$(POD_RESOURCES_SOCKET)", "-a", "$(POD_IP):" + strconv.Itoa(agentPort),
			"--node-name", "$(NODE_NAME)",
		}
		if s.cfg.GPUs > 0 {
			argv = append(argv, "--sim-gpus", strconv.Itoa(s.cfg.GPUs))
		}
		if s.cfg.AgentTokens {
			with, err := s.agentAccount(ctx)
			if err != nil {
				return err
			}
			argv = append(append(with, argv...), "--auth", "token", "--service-account", s.dir)
		}
		argv = append(argv, s.cfg.AgentArgs...)
	}
	images := map[string]string{AgentImage: filepath.Join(s.cfg.Root, "bin", "gpupilot-agent")}
	for image, program := range s.cfg.Images {
		images[image] = filepath.Join(s.cfg.Root, "bin", program)
	}
	s.Nodes, err = simnode.Start(ctx, simnode.Config{
		Client: clients, Dir: filepath.Join(s.dir, "n"), Nodes: s.cfg.Nodes, GPUs: s.cfg.GPUs,
		Exec: map[string][]string{"agent": argv}, Images: images,
		Workloads: s.cfg.Workloads, DeviceID: s.cfg.DeviceID, Log: s.cfg.Log,
	})
	if err != nil {
		return err
	}
	if s.cfg.NoAgents {
		return nil
	}
	return s.DeployAgents(ctx)
}

// DeployAgents makes the agents' DaemonSet and waits for an agent on each node.
func (s *Stack) DeployAgents(ctx context.Context) error {
	if err := s.Apply(ctx, []byte(agents)); err != nil {
		return err
	}
	return s.AwaitAgents(ctx, len(s.Nodes.NodeNames()))
}

// AddNodes adds nodes, and waits for their agents unless the configuration has none.
func (s *Stack) AddNodes(ctx context.Context, n int) error {
	if err := s.Nodes.Add(ctx, n); err != nil || s.cfg.NoAgents {
		return err
	}
	return s.AwaitAgents(ctx, len(s.Nodes.NodeNames()))
}

// AwaitAgents waits until so many agents are ready.
func (s *Stack) AwaitAgents(ctx context.Context, n int) error {
	return Await(ctx, startTimeout, func() error {
		ready, err := s.ReadyPods(ctx, Namespace, client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"})
		if err != nil {
			return err
		}
		if len(ready) != n {
			return fmt.Errorf("%d of %d agents are ready", len(ready), n)
		}
		return nil
	})
}

// Close ends everything and removes all files. It may be called at any time, and more
// than once.
func (s *Stack) Close() {
	s.StopController()
	s.Prometheus.stop()
	s.mu.Lock()
	closes := s.closes
	s.closes = nil
	s.mu.Unlock()
	for _, f := range slices.Backward(closes) {
		f()
	}
	if s.Nodes != nil {
		if err := s.Nodes.Close(); err != nil {
			s.cfg.Log.Warn("cannot close the simulated nodes", "err", err)
		}
	}
	if s.Cluster != nil {
		s.Cluster.Stop()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir) // a rest remains in the temporary folder
	}
}

// findRoot returns the folder of go.mod, at or above the working directory.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside the GPUPilot repository: no go.mod at or above the working directory")
		}
		dir = parent
	}
}
