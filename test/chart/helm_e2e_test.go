// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/postrenderer"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/test/stack"
)

// helmTimeout bounds one command of helm.
const helmTimeout = 5 * time.Minute

// helm runs helm's commands against one cluster.
type helm struct {
	cfg  *action.Configuration
	post postrenderer.PostRenderer // nil: none
}

func newHelm(kubeconfig string, post postrenderer.PostRenderer) (*helm, error) {
	kube.ManagedFieldsManager = "helm" // as the command does
	flags := genericclioptions.NewConfigFlags(false)
	ns := namespace
	flags.KubeConfig, flags.Namespace = &kubeconfig, &ns
	cfg := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	if err := cfg.Init(flags, namespace, "secrets"); err != nil {
		return nil, err
	}
	return &helm{cfg: cfg, post: post}, nil
}

// install is helm install --create-namespace.
func (h *helm) install(ctx context.Context, vals map[string]any) error {
	chrt, err := loadChart()
	if err != nil {
		return err
	}
	c := action.NewInstall(h.cfg)
	c.ReleaseName, c.Namespace, c.CreateNamespace, c.Timeout = releaseName, namespace, true, helmTimeout
	c.WaitStrategy, c.PostRenderer = kube.HookOnlyStrategy, h.post
	if _, err := c.RunWithContext(ctx, chrt, vals); err != nil {
		return fmt.Errorf("helm install: %w", err)
	}
	return nil
}

// upgrade is helm upgrade.
func (h *helm) upgrade(ctx context.Context, vals map[string]any) error {
	chrt, err := loadChart()
	if err != nil {
		return err
	}
	c := action.NewUpgrade(h.cfg)
	c.Namespace, c.Timeout, c.WaitStrategy, c.PostRenderer = namespace, helmTimeout, kube.HookOnlyStrategy, h.post
	c.ServerSideApply = "auto"
	if _, err := c.RunWithContext(ctx, releaseName, chrt, vals); err != nil {
		return fmt.Errorf("helm upgrade: %w", err)
	}
	return nil
}

// test is helm test.
func (h *helm) test() error {
	c := action.NewReleaseTesting(h.cfg)
	c.Namespace, c.Timeout = namespace, helmTimeout
	_, shutdown, err := c.Run(releaseName)
	if err = errors.Join(err, shutdown()); err != nil {
		return fmt.Errorf("helm test: %w", err)
	}
	return nil
}

// uninstall is helm uninstall --wait.
func (h *helm) uninstall() error {
	c := action.NewUninstall(h.cfg)
	c.Timeout, c.WaitStrategy, c.DeletionPropagation = helmTimeout, kube.LegacyStrategy, "background"
	if _, err := c.Run(releaseName); err != nil {
		return fmt.Errorf("helm uninstall: %w", err)
	}
	return nil
}

// toLoopback makes the controller's Service one of localhost: in this test the controller is a process of this machine
// (test/stack), and the API server dials it by that name.
type toLoopback struct{ port int }

// Run is Helm's post-renderer.
func (p *toLoopback) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	all, err := decode(rendered.Bytes())
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, o := range all {
		switch o.GetKind() {
		case "Service":
			o.Object["spec"] = map[string]any{"type": "ExternalName", "externalName": "localhost"}
		case "APIService":
			if err := unstructured.SetNestedField(o.Object, float64(p.port), "spec", "service", "port"); err != nil {
				return nil, err
			}
		}
		text, err := sigsyaml.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return &out, nil
}

// startStack starts a control plane, installs the chart, and starts the controller.
func startStack(t *testing.T, install func(context.Context, *stack.Stack) error) *stack.Stack {
	t.Helper()
	s, err := stack.Start(t.Context(), stack.Config{Root: root, NoNodes: true, Install: install})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
