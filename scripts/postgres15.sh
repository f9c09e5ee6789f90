#!/usr/bin/env bash
# Print the folder of Debian's PostgreSQL 15 server programs, installing them when root and missing, with pg_partman
# for the tests of partitioned queues. Only the programs are used: the package's own cluster is neither made nor started.
set -euo pipefail
bin=/usr/lib/postgresql/15/bin
if [ ! -x $bin/postgres ] || [ ! -e /usr/share/postgresql/15/extension/pg_partman.control ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "postgres15: not installed; as root: apt-get install postgresql-15 postgresql-15-partman" >&2
    exit 1
  fi
  mkdir -p /etc/postgresql-common
  [ -e /etc/postgresql-common/createcluster.conf ] ||
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
  { apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql-15 postgresql-15-partman; } >&2
fi
echo $bin
