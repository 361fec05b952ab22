// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/node/tokenreview"
)

// CreateAccount makes a ServiceAccount in Namespace with a ClusterRole in some namespaces; * is the whole cluster. remove
// deletes it and its rights.
func (s *Stack) CreateAccount(ctx context.Context, name, role string, in ...string) (remove func() error, err error) {
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: Namespace, Name: name}}
	objects := []client.Object{&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}}
	for _, ns := range in {
		if ns == "*" {
			objects = append(objects, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: ref, Subjects: subjects})
			continue
		}
		objects = append(objects, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, RoleRef: ref, Subjects: subjects})
	}
	remove = func() error {
		var errs []error
		for _, o := range objects {
			errs = append(errs, client.IgnoreNotFound(s.Client.Delete(context.Background(), o)))
		}
		return errors.Join(errs...)
	}
	for _, o := range objects {
		if err := s.Client.Create(ctx, o); err != nil {
			return remove, fmt.Errorf("create the account %s: %w", name, err)
		}
	}
	return remove, nil
}

// Token returns a token of a ServiceAccount of Namespace. Without audiences it is one for the API server.
func (s *Stack) Token(ctx context.Context, name string, audiences ...string) (string, error) {
	set, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		return "", err
	}
	r, err := set.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a token of %s: %w", name, err)
	}
	return r.Status.Token, nil
}

// agentAccount writes the agents' account and its token, and returns the command that runs an agent with the API
// server's address.
func (s *Stack) agentAccount(ctx context.Context) ([]string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: AgentAccount}}
	if err := s.Client.Create(ctx, account); err != nil {
		return nil, err
	}
	token, err := s.Token(ctx, AgentAccount)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(s.REST.Host)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(s.dir, "token"), []byte(token), 0o600), os.WriteFile(filepath.Join(s.dir, "ca.crt"), s.REST.CAData, 0o600), s.RotateToken(ctx)); err != nil {
		return nil, err
	}
	return []string{"/usr/bin/env", "KUBERNETES_SERVICE_HOST=" + server.Hostname(), "KUBERNETES_SERVICE_PORT=" + server.Port()}, nil
}

// RotateToken gives the controller a new token for agents, as the kubelet does: the file is replaced.
func (s *Stack) RotateToken(ctx context.Context) error {
	token, err := s.Token(ctx, ControllerAccount, tokenreview.Audience)
	if err != nil {
		return err
	}
	next := s.agentToken() + ".next"
	return errors.Join(os.WriteFile(next, []byte(token), 0o600), os.Rename(next, s.agentToken()))
}

func (s *Stack) agentToken() string { return filepath.Join(s.dir, "agent-token") }
