// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AccountREST returns a configuration for a service account of Namespace, without a rate limit.
func (s *Stack) AccountREST(name string) (*rest.Config, error) {
	kubeconfig, err := s.accountKubeconfig(name)
	if err != nil {
		return nil, err
	}
	return restConfig(kubeconfig)
}

func (s *Stack) accountKubeconfig(name string) (string, error) {
	return s.Cluster.KubeconfigFor(accounts+name, "system:serviceaccounts", "system:serviceaccounts:"+Namespace)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // no limit
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return patient{rt} })
	return cfg, nil
}

// lastPolicy is the last policy of deploy/admission: the API server enforces them together.
const lastPolicy = "gpupilot-controller-events"

// awaitPolicies waits until the API server enforces deploy/admission, a moment after the policies are created.
func (s *Stack) awaitPolicies(ctx context.Context) error {
	cfg, err := s.AccountREST(ControllerAccount)
	if err != nil {
		return err
	}
	account, err := client.New(cfg, client.Options{Scheme: s.Client.Scheme()})
	if err != nil {
		return err
	}
	return Await(ctx, startTimeout, func() error {
		err := account.Create(ctx, &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "probe"},
			EventTime:  metav1.NowMicro(), ReportingController: "another", ReportingInstance: "probe", Reason: "Probe", Action: "Probe", Type: "Normal",
		}, client.DryRunAll)
		switch {
		case err == nil:
			return errors.New("the admission policies are not enforced")
		case !strings.Contains(err.Error(), lastPolicy):
			return fmt.Errorf("admission policies: %w", err)
		}
		return nil
	})
}
