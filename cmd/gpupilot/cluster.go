// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// cluster is the cluster that kubectl would talk to, by kubectl's flags.
type cluster struct {
	kubeconfig, context, namespace string
}

func (c *cluster) flags(f *pflag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "path of a kubeconfig (default: $KUBECONFIG, ~/.kube/config, or in-cluster)")
	f.StringVar(&c.context, "context", "", "context of the kubeconfig (default: its current one)")
	f.StringVarP(&c.namespace, "namespace", "n", "", "namespace (default: the context's)")
}

func (c *cluster) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
}

// object is what an argument names: [NAMESPACE/]NAME, or nothing.
func (c *cluster) object(args []string) (namespace, name string, err error) {
	if len(args) > 0 {
		name = args[0]
		if before, after, ok := strings.Cut(name, "/"); ok {
			if before == "" || after == "" || strings.Contains(after, "/") || c.namespace != "" && c.namespace != before {
				return "", "", fmt.Errorf("%q is not [NAMESPACE/]NAME of a GPUAutoscaler", args[0])
			}
			return before, after, nil
		}
	}
	if c.namespace != "" {
		return c.namespace, name, nil
	}
	if namespace, _, err = c.config().Namespace(); err != nil {
		return "", "", fmt.Errorf("find the namespace: %w", err)
	}
	return namespace, name, nil
}

func (c *cluster) rest() (*rest.Config, error) {
	cfg, err := c.config().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	return cfg, nil
}

func (c *cluster) client() (client.Client, error) {
	cfg, err := c.rest()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(cfg, client.Options{Scheme: scheme})
}
